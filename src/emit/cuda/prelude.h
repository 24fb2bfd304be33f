// What every kernel's text begins with. Inside emit/cuda only.
#pragma once

namespace trainc::emit::cuda {

// NVRTC has no headers of its own for bf16 and f16: both are 16 bits here. Rounding and NaN as in emit/llvm/values.cpp.
inline constexpr const char* kPrelude = R"(#ifndef MIN_BLOCKS
#define MIN_BLOCKS
#endif
typedef unsigned short bf16;
typedef unsigned short f16;
typedef long long i64;
typedef unsigned long long u64;
#define INLINE static __device__ __forceinline__
INLINE float bf16_to_f32(bf16 x) { return __uint_as_float((unsigned)x << 16); }
INLINE bf16 f32_to_bf16(float x) {
#ifdef __CUDA_ARCH__  // one instruction, to nearest even
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
#else
  const unsigned bits = __float_as_uint(x);
  return x != x ? (bf16)(bits >> 16 | 0x40) : (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
// A NaN wins; of two equal ones the second (0.0 and -0.0).
template <class T> INLINE T greater(T a, T b) { return a != a || a > b ? a : b; }
template <class T> INLINE T lesser(T a, T b) { return a != a || a < b ? a : b; }
template <class T> INLINE T sign(T a) { return (T)((a > (T)0) - (a < (T)0)); }
template <class T> INLINE T sum(T a, T b) { return (T)(a + b); }
template <class T> INLINE T product(T a, T b) { return (T)(a * b); }
// Integer division that never traps: by 0 gives 0.
template <class T> INLINE T div_trunc(T a, T b) { return b == 0 ? (T)0 : (T)-1 < (T)0 && b == (T)-1 ? (T)(0 - (u64)a) : (T)(a / b); }
template <class T> INLINE T div_floor(T a, T b) {
  const T q = div_trunc(a, b), r = (T)(a - (T)((u64)q * (u64)b));
  return b != 0 && r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q;
}
template <class T> INLINE T mod_floor(T a, T b) { return (T)(a - (T)((u64)div_floor(a, b) * (u64)b)); }
INLINE float mod_floor(float a, float b) { const float r = fmodf(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
INLINE double mod_floor(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <class T> INLINE T power(T base, T exponent) {
  if (exponent < (T)0) return base == 1 ? (T)1 : base == (T)-1 ? (exponent & 1 ? (T)-1 : (T)1) : (T)0;
  u64 r = 1, b = (u64)base;
  for (u64 e = (u64)exponent; e; e >>= 1, b *= b) if (e & 1) r *= b;
  return (T)r;
}
// By b bits, b taken as unsigned: everything is shifted out from the width on.
template <class T> INLINE bool within_width(T b) { return b >= (T)0 && (u64)b < 8 * sizeof(T); }
template <class T> INLINE u64 bits_of(T a) { return (u64)a & (~0ull >> (64 - 8 * sizeof(T))); }
template <class T> INLINE T shift_left(T a, T b) { return within_width(b) ? (T)(bits_of(a) << b) : (T)0; }
template <class T> INLINE T shift_right(T a, T b) { return within_width(b) ? (T)(bits_of(a) >> b) : (T)0; }
template <class T> INLINE T shift_right_signed(T a, T b) {
  const int up = 64 - 8 * sizeof(T);
  return (T)((i64)((u64)a << up) >> up >> (within_width(b) ? (int)b : 63));
}
// Out of range and NaN give the lowest integer, as on the CPU.
INLINE i64 to_i64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (i64)x : (i64)(1ull << 63); }
INLINE int to_i32(double x) { return x > -0x1.00000002p31 && x < 0x1p31 ? (int)x : (int)0x80000000; }
// Elements that are registers on one side; in memory they are one access where `wide` says that it may be.
template <int n, class T> struct __align__(n * sizeof(T)) Wide { T x[n]; };
template <int n, class T> INLINE void read_wide(T* to, const T* from, bool wide) {
  Wide<n, T> w;
  if (wide) w = *(const Wide<n, T>*)from;
  else {
#pragma unroll
    for (int i = 0; i < n; ++i) w.x[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = w.x[i];
}
template <int n, class T> INLINE void write_wide(T* to, const T* from, bool wide) {
  Wide<n, T> w;
#pragma unroll
  for (int i = 0; i < n; ++i) w.x[i] = from[i];
  if (wide) *(Wide<n, T>*)to = w;
  else {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = w.x[i];
  }
}
// Bools as bits, eight a byte; n of them, which lie in one, begin at a multiple of n.
template <class I> INLINE bool bit(const unsigned char* x, I at) { return x[at >> 3] >> (int)(at & 7) & 1; }
template <int n, class I> INLINE void read_bits(unsigned char* to, const unsigned char* from, I at) {
  const int byte = from[at >> 3] >> (int)(at & 7);
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = byte >> i & 1;
}
template <class I> INLINE void write_bits(unsigned char* to, I at, const unsigned char* from) {
  int byte = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) byte |= from[i] << i;
  to[at >> 3] = (unsigned char)byte;
}
template <class T, T (*combine)(T, T)> INLINE T warp_reduce(T x) {
#pragma unroll
  for (int apart = 16; apart >= 1; apart >>= 1) x = combine(__shfl_xor_sync(0xffffffffu, x, apart), x);
  return x;
}
)";

// Text of the words that follow, here and in a test's own:
//   copy_async     16 bytes, to Shared memory while the thread goes on; zeros where they do not exist, element by
//                  element where `wide` says that they do not begin at a multiple of 16 bytes
//   load_matrix    see LoadMatrix in loop.h
// What has no words in CUDA C++ without headers. A test that compiles the text for the host puts its own in their
// place.
inline constexpr const char* kPtx =
    R"(INLINE float f16_to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
INLINE f16 f32_to_f16(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
INLINE unsigned pair(const bf16* x) { return (unsigned)x[0] | (unsigned)x[1] << 16; }
INLINE unsigned shared_address(const void* x) { return (unsigned)__cvta_generic_to_shared(x); }
template <class T> INLINE void copy_async(T* to, const T* from, bool exists, bool wide) {
  if (wide) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
  else {
#pragma unroll
    for (int i = 0; i < 16 / (int)sizeof(T); ++i) to[i] = exists ? from[i] : (T)0;
  }
}
INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups> INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory"); }
INLINE void spread(bf16* to, const unsigned* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[2 * i] = (bf16)x[i], to[2 * i + 1] = (bf16)(x[i] >> 16);
}
INLINE void load_matrix(bf16* to, const bf16* row) {
  unsigned x[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
  spread(to, x);
}
INLINE void load_matrix_transposed(bf16* to, const bf16* row) {
  unsigned x[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
  spread(to, x);
}
INLINE void load_matrix(float* to, const float* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(shared_address(row)) : "memory");
}
INLINE unsigned tf32(float x) { unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
INLINE void mma(float* c, const bf16* a, const bf16* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(pair(a)), "r"(pair(a + 2)), "r"(pair(a + 4)), "r"(pair(a + 6)), "r"(pair(b)), "r"(pair(b + 2)));
}
INLINE void mma(float* c, const float* a, const float* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(tf32(a[0])), "r"(tf32(a[1])), "r"(tf32(a[2])), "r"(tf32(a[3])), "r"(tf32(b[0])), "r"(tf32(b[1])));
}
)";

}  // namespace trainc::emit::cuda
