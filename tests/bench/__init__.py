"""Throughput of ftppo beside that of what people use otherwise. `bash run.sh bench` runs all, or those named."""
