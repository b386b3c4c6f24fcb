"""multibit inside other libraries: models for sentence-transformers, vector stores for LangChain and LlamaIndex.

Each module needs its library, which is an extra of the same name.
"""
