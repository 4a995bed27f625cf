"""Recording what decisions got and gave, and repeating them.

`recorder` writes each round of a service, `reader` reads rounds back, `differences` compares two plans field by field.
"""
