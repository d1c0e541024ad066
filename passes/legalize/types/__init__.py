"""Rules for dtypes that the runtime lacks, and for quantization."""
