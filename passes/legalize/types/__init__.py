"""Rules for casts, small dtypes and quantization."""
