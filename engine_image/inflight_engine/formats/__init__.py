"""Formats of tool calls and reasoning in the text of models: one description each, which gives the incremental parser
and the grammar. Pure: no server, no tokenizer, no I/O."""
