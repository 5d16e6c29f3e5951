// Compiler facts shared by host and device code.
//
// OTR_INLINE gives a function internal linkage and forces inlining. Kernel files are compiled for different instruction
// sets; an ordinary inline function that two of them share could be merged by the linker into the copy that needs the
// newer instructions, and then crash an older machine. OTR_INLINE_MEMBER is for members that such files call: a member has no
// internal linkage, but inlined at every level of optimisation it leaves no copy. tests/tools/isa_objects_test.py looks.
#pragma once

#if defined(__CUDACC__)
#define OTR_HOST_DEVICE __host__ __device__
#define OTR_DEVICE static __device__ __forceinline__
#else
#define OTR_HOST_DEVICE
#endif

#define OTR_INLINE OTR_HOST_DEVICE static inline __attribute__((always_inline, unused))
#define OTR_INLINE_MEMBER OTR_HOST_DEVICE inline __attribute__((always_inline))
#define OTR_RESTRICT __restrict__
