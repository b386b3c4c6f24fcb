"""The tables, figures and claims of the paper, reproduced."""
