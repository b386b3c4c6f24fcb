"""Tables, figures, pages and files of evaluations and searches."""
