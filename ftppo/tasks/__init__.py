"""Where prompts come from, what an answer is worth, and how text becomes tokens."""
