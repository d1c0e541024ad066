"""AMD machine code on a CPU: a code object's kernels, computed instruction by instruction.

    code object ──code_object──► kernels, segments
                ──comgr────────► text of each instruction ──translate──► records ──emulator──► the machine (C++)

`machine/` states what each instruction does, over arrays of 32 or 64 lanes; g++ builds it once for a processor and a
size of waves. The package knows nothing of MIGraphX, and compares nothing: it runs a kernel over memory that it is
given, or raises `NotEmulated` or `KernelFault`. What is not computed: time, hazards, caches, races between waves.
"""
