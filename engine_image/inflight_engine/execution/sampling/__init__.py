"""From logits to a token for each row: bias, penalties, draws, logprobs."""
