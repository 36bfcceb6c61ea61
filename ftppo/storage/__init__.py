"""Bytes and keys: one small store protocol, its stores, the retry policy, the buffered writer, URL -> store."""
