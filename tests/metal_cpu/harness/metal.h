// The part of Metal's standard library that kernels here may use, for clang on a CPU.
//
// With METAL_CPU_ADDRESS_SPACES, device, constant and threadgroup are address spaces that convert
// to nothing else: such a build is only checked. Without, they are empty, so that sanitizers see
// every access. A name that is missing here is a compile error: add it with Metal's meaning, or do
// without.
#pragma once
#pragma clang system_header  // this file may use what kernels may not
#include "runtime.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef _Float16 float16_t;
typedef __bf16 bfloat;
typedef __bf16 bfloat16_t;

#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CPU_VECTORS(T)                          \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
METAL_CPU_VECTORS(bool)
METAL_CPU_VECTORS(char)
METAL_CPU_VECTORS(uchar)
METAL_CPU_VECTORS(short)
METAL_CPU_VECTORS(ushort)
METAL_CPU_VECTORS(int)
METAL_CPU_VECTORS(uint)
METAL_CPU_VECTORS(long)
METAL_CPU_VECTORS(ulong)
METAL_CPU_VECTORS(half)
METAL_CPU_VECTORS(bfloat)
METAL_CPU_VECTORS(float)

// The parts of this file that are no accesses of the kernel's.
#define METAL_CPU_UNSEEN __attribute__((no_sanitize("thread"), noinline))

namespace metal_cpu {

template <typename V>
struct element_of {
  typedef V type;
  static constexpr int size = 1;
};
template <typename E, int N>
struct element_of<E __attribute__((ext_vector_type(N)))> {
  typedef E type;
  static constexpr int size = N;
};

// float4(1.0f), float4(x, y, z, w), float4(half4): the translator turns them into this.
template <typename V, typename... Parts>
METAL_FUNC V make_vector(Parts... parts) {
  typedef typename element_of<V>::type E;
  constexpr int size = element_of<V>::size;
  V out = {};
  if constexpr (sizeof...(Parts) == 1 && (... && (element_of<Parts>::size == 1))) {
    for (int i = 0; i < size; ++i) out[i] = static_cast<E>((parts, ...));
  } else {
    static_assert((0 + ... + element_of<Parts>::size) == size, "wrong number of components");
    int at = 0;
    auto put = [&](auto part) {
      typedef decltype(part) P;
      if constexpr (element_of<P>::size == 1) {
        out[at++] = static_cast<E>(part);
      } else {
        for (int i = 0; i < element_of<P>::size; ++i) out[at++] = static_cast<E>(part[i]);
      }
    };
    (put(parts), ...);
  }
  return out;
}

template <typename A>
METAL_FUNC A& threadgroup_array(const char* name) {
  typedef __remove_all_extents(A) E;
  constexpr size_t granule = sizeof(E) < 4 ? sizeof(E) : 4;
  return *(A*)threadgroup_memory(name, sizeof(A), sizeof(E) % granule ? 1 : granule);
}

template <typename T>
METAL_FUNC T poison() {
  T out;
  __builtin_memset(&out, 0xff, sizeof(T));
  return out;
}

// The lanes of the simdgroup in order, each with its value.
template <typename T>
struct Lanes {
  const unsigned char* slots;
  METAL_CPU_UNSEEN T operator[](uint32_t lane) const {
    T out;
    __builtin_memcpy(&out, slots + lane * SLOT, sizeof(T));
    return out;
  }
};

template <typename T>
METAL_FUNC Lanes<T> share(const char* what, int line, T value) {
  static_assert(sizeof(T) <= SLOT);
  return {exchange(what, line, &value, sizeof(T))};
}

template <typename T>
METAL_FUNC T from_lane(const char* what, int line, T value, uint32_t source) {
  Lanes<T> all = share(what, line, value);
  return source < lanes_present() ? all[source] : poison<T>();
}

template <typename T, typename F>
METAL_CPU_UNSEEN T reduce(const char* what, int line, T value, F combine) {
  Lanes<T> all = share(what, line, value);
  T out = all[0];
  for (uint32_t i = 1; i < lanes_present(); ++i) out = combine(out, all[i]);
  return out;
}

template <typename T>
METAL_CPU_UNSEEN T sum_before(const char* what, int line, T value, bool with_own) {
  Lanes<T> all = share(what, line, value);
  T out = T(0);
  for (uint32_t i = 0; i < lane() + with_own; ++i) out += all[i];
  return out;
}

}  // namespace metal_cpu

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

// -- arithmetic ----------------------------------------------------------------------------------
#define METAL_CPU_UNARY(name, builtin) \
  template <typename T>                \
  METAL_FUNC T name(T x) {             \
    return builtin(x);                 \
  }
METAL_CPU_UNARY(abs, __builtin_elementwise_abs)
METAL_CPU_UNARY(fabs, __builtin_elementwise_abs)
METAL_CPU_UNARY(ceil, __builtin_elementwise_ceil)
METAL_CPU_UNARY(floor, __builtin_elementwise_floor)
METAL_CPU_UNARY(trunc, __builtin_elementwise_trunc)
METAL_CPU_UNARY(rint, __builtin_elementwise_rint)
METAL_CPU_UNARY(round, __builtin_elementwise_round)
METAL_CPU_UNARY(sqrt, __builtin_elementwise_sqrt)
METAL_CPU_UNARY(exp, __builtin_elementwise_exp)
METAL_CPU_UNARY(exp2, __builtin_elementwise_exp2)
METAL_CPU_UNARY(log, __builtin_elementwise_log)
METAL_CPU_UNARY(log2, __builtin_elementwise_log2)
METAL_CPU_UNARY(sin, __builtin_elementwise_sin)
METAL_CPU_UNARY(cos, __builtin_elementwise_cos)

template <typename T>
METAL_FUNC T rsqrt(T x) {
  return T(1) / sqrt(x);
}
template <typename T>
METAL_FUNC T max(T a, T b) {
  return __builtin_elementwise_max(a, b);
}
template <typename T>
METAL_FUNC T min(T a, T b) {
  return __builtin_elementwise_min(a, b);
}
template <typename T>
METAL_FUNC T clamp(T x, T least, T most) {
  return min(max(x, least), most);
}
template <typename T>
METAL_FUNC T pow(T x, T y) {
  return __builtin_elementwise_pow(x, y);
}
template <typename T>
METAL_FUNC T fma(T a, T b, T c) {
  return __builtin_elementwise_fma(a, b, c);
}
template <typename T>
METAL_FUNC T select(T no, T yes, bool which) {
  return which ? yes : no;
}
template <typename T>
METAL_FUNC bool isnan(T x) {
  return x != x;
}
template <typename T>
METAL_FUNC bool isinf(T x) {
  return x == T(__builtin_inff()) || x == -T(__builtin_inff());
}
template <typename V>
METAL_FUNC typename metal_cpu::element_of<V>::type dot(V a, V b) {
  typename metal_cpu::element_of<V>::type out = a[0] * b[0];
  for (int i = 1; i < metal_cpu::element_of<V>::size; ++i) out += a[i] * b[i];
  return out;
}

METAL_FUNC uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
METAL_FUNC uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
METAL_FUNC uint popcount(uint x) { return __builtin_popcount(x); }
METAL_FUNC ulong ctz(ulong x) { return x ? __builtin_ctzl(x) : 64; }
METAL_FUNC ulong clz(ulong x) { return x ? __builtin_clzl(x) : 64; }
METAL_FUNC ulong popcount(ulong x) { return __builtin_popcountl(x); }
METAL_FUNC int popcount(int x) { return __builtin_popcount(x); }

namespace fast {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::log;
using metal::log2;
using metal::max;
using metal::min;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
}  // namespace fast
namespace precise = fast;

// -- barriers and simdgroups: all threads must come to the same line ------------------------------
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

METAL_FUNC void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  metal_cpu::meet_threadgroup(uint(flags), line);
}
METAL_FUNC void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  metal_cpu::meet_simdgroup(uint(flags), line);
}

#define METAL_CPU_REDUCTION(name, expression)                                               \
  template <typename T>                                                                     \
  METAL_FUNC T name(T value, int line = __builtin_LINE()) {                                 \
    return metal_cpu::reduce(#name, line, value, [](T a, T b) -> T { return expression; }); \
  }
METAL_CPU_REDUCTION(simd_sum, a + b)
METAL_CPU_REDUCTION(simd_product, a* b)
METAL_CPU_REDUCTION(simd_max, a > b ? a : b)
METAL_CPU_REDUCTION(simd_min, a < b ? a : b)
METAL_CPU_REDUCTION(simd_and, a& b)
METAL_CPU_REDUCTION(simd_or, a | b)
METAL_CPU_REDUCTION(simd_xor, a ^ b)

METAL_FUNC bool simd_all(bool value, int line = __builtin_LINE()) {
  return metal_cpu::reduce("simd_all", line, value, [](bool a, bool b) { return a && b; });
}
METAL_FUNC bool simd_any(bool value, int line = __builtin_LINE()) {
  return metal_cpu::reduce("simd_any", line, value, [](bool a, bool b) { return a || b; });
}

template <typename T>
METAL_FUNC T simd_prefix_inclusive_sum(T value, int line = __builtin_LINE()) {
  return metal_cpu::sum_before("simd_prefix_inclusive_sum", line, value, true);
}
template <typename T>
METAL_FUNC T simd_prefix_exclusive_sum(T value, int line = __builtin_LINE()) {
  return metal_cpu::sum_before("simd_prefix_exclusive_sum", line, value, false);
}

// A lane that is not there gives NaN, where Metal says nothing.
template <typename T>
METAL_FUNC T simd_shuffle(T value, ushort source, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_shuffle", line, value, source);
}
template <typename T>
METAL_FUNC T simd_shuffle_xor(T value, ushort mask, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_shuffle_xor", line, value, metal_cpu::lane() ^ mask);
}
template <typename T>
METAL_FUNC T simd_shuffle_up(T value, ushort delta, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_shuffle_up", line, value, metal_cpu::lane() - delta);
}
template <typename T>
METAL_FUNC T simd_shuffle_down(T value, ushort delta, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_shuffle_down", line, value, metal_cpu::lane() + delta);
}
template <typename T>
METAL_FUNC T simd_broadcast(T value, ushort source, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_broadcast", line, value, source);
}
template <typename T>
METAL_FUNC T simd_broadcast_first(T value, int line = __builtin_LINE()) {
  return metal_cpu::from_lane("simd_broadcast_first", line, value, 0u);
}

struct simd_vote {
  typedef uint64_t vote_t;
  vote_t bits;
  explicit operator vote_t() const { return bits; }
  bool all() const { return bits == (vote_t(1) << metal_cpu::lanes_present()) - 1; }
  bool any() const { return bits != 0; }
};
METAL_FUNC simd_vote simd_ballot(bool value, int line = __builtin_LINE()) {
  uint64_t own = uint64_t(value) << metal_cpu::lane();
  return {
      metal_cpu::reduce("simd_ballot", line, own, [](uint64_t a, uint64_t b) { return a | b; })};
}

// -- simdgroup matrices ---------------------------------------------------------------------------
// A lane holds two neighbours of one row. Which, MLX's own kernels rely on: with lane bits edcba,
// row ecb and columns da0 and da1.
template <typename T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8 by 8");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; ++i) elements[i] = row() == column() + i ? diagonal : T(0);
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }

  static uint row(uint lane = metal_cpu::lane()) { return (lane >> 2 & 4) + lane / 2 % 4; }
  static uint column(uint lane = metal_cpu::lane()) { return (lane >> 2 & 2) * 2 + lane % 2 * 2; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int Columns, int Rows>
METAL_FUNC simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> out;
  out.elements[0] = out.elements[1] = value;
  return out;
}

template <typename T, typename Pointer>
constexpr bool same_element() {
#ifdef METAL_CPU_ADDRESS_SPACES
  return true;
#else
  return __is_same(__remove_cv(__remove_pointer(Pointer)), T);
#endif
}

// Which lane reads or writes which element is not to be relied on: see `as_whole_simdgroup`.
template <typename T, typename Pointer, typename Move>
METAL_FUNC void move_matrix(T& matrix, Pointer at, ulong stride, ulong2 origin, bool transpose,
                            Move move) {
  at += origin[1] * stride + origin[0];
  metal_cpu::as_whole_simdgroup(true);
  for (int i = 0; i < 2; ++i) {
    ulong row = T::row(), column = T::column() + i;
    move(matrix, i, at + (transpose ? column * stride + row : row * stride + column));
  }
  metal_cpu::as_whole_simdgroup(false);
}
template <typename T, typename Pointer>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, Pointer at, ulong stride = 8,
                               ulong2 origin = 0, bool transpose = false) {
  static_assert(same_element<T, Pointer>(), "matrix and memory differ in type");
  move_matrix(matrix, at, stride, origin, transpose,
              [](auto& m, int i, auto from) { m.elements[i] = *from; });
}
template <typename T, typename Pointer>
METAL_FUNC void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, Pointer at,
                                ulong stride = 8, ulong2 origin = 0, bool transpose = false) {
  static_assert(same_element<T, Pointer>(), "matrix and memory differ in type");
  move_matrix(matrix, at, stride, origin, transpose,
              [](auto& m, int i, auto to) { *to = m.elements[i]; });
}

namespace detail {
struct Operands {
  float a[2], b[2];
};
METAL_CPU_UNSEEN inline void product(const unsigned char* slots, uint row, uint column,
                                     float* out) {
  typedef simdgroup_float8x8 M;
  for (uint k = 0; k < 8; ++k) {
    // The lanes that hold element (row, k) of a, and (k, column) of b.
    uint of_a = (row & 4) << 2 | (row & 3) << 1 | (k & 4) << 1 | (k >> 1 & 1);
    uint of_b = (k & 4) << 2 | (k & 3) << 1 | (column & 4) << 1 | (column >> 1 & 1);
    const Operands& left = *(const Operands*)(slots + of_a * metal_cpu::SLOT);
    const Operands& right = *(const Operands*)(slots + of_b * metal_cpu::SLOT);
    for (int i = 0; i < 2; ++i) out[i] += left.a[k & 1] * right.b[i];
  }
}
}  // namespace detail

template <typename D, typename A, typename B, typename C>
METAL_FUNC void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                              const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b,
                                              const simdgroup_matrix<C, 8, 8>& c,
                                              int line = __builtin_LINE()) {
  detail::Operands own;
  float out[2];
  for (int i = 0; i < 2; ++i) {
    own.a[i] = float(a.elements[i]);
    own.b[i] = float(b.elements[i]);
    out[i] = float(c.elements[i]);
  }
  const unsigned char* slots =
      metal_cpu::exchange("simdgroup_multiply_accumulate", line, &own, sizeof(own));
  detail::product(slots, d.row(), d.column(), out);
  for (int i = 0; i < 2; ++i) d.elements[i] = D(out[i]);
}
template <typename D, typename A, typename B>
METAL_FUNC void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b,
                                   int line = __builtin_LINE()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), line);
}

}  // namespace metal

template <typename To, typename From>
METAL_FUNC To as_type(From x) {
  return __builtin_bit_cast(To, x);
}

#ifdef METAL_CPU_ADDRESS_SPACES
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant
#define threadgroup
#endif
#define thread
#define kernel
