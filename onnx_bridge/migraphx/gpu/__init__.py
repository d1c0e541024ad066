"""Compiling for an AMD GPU that is not there: MIGraphX's whole gpu target, with a HIP runtime that pretends one.

Lowering, fusion and every kernel that MIGraphX generates are real, compiled by AMD's compiler on the CPU. MIOpen,
rocBLAS and hipBLASLt are not there: convolutions and matrix products stay calls that choose kernels when they run.
"""
