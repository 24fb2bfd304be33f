// Loop nests: what a kernel does, in full; the emitters only print it.
// Takes: what src/lower writes. Gives: LoopNest. Includes: support, and graph/graph.h for Op alone.
//
// A nest is a small structured program over scalars. Expressions are written as if for one element; a loop of kind
// Vector says that `lanes` of its iterations run as one: expressions that depend on its variable become vectors, and
// the last extent % lanes iterations run as one masked vector. That is the only place where vectors exist.
//
// Glossary
//   Var        a loop variable, i64. Known range [0, extent) when the extent is a number.
//   buffer     memory with a dtype and a number of elements. Space says where:
//                Argument   the kernel's n-th pointer (no two overlap where one is written; one that is `over` another
//                           may be the same memory)
//                Scratch    this thread's scratch memory, 64-byte aligned, not kept between calls, not zeroed
//                Register   a few vectors; every index is a number once Unroll loops and Vector loops are expanded
//                Shared     (device) this block's memory, seen by its threads; not kept between blocks, not zeroed
//                Tile       (CPUs with AMX) one tile register: 16 rows of 16 f32, or of 16 i32 that are pairs of bf16;
//                           read and written by tile statements alone
//   local      a scalar (or, inside a Vector loop, a vector) with a name: Let binds it once; a Reduce adds to it.
//   parallel   the outermost loop may be Parallel: its iterations are independent; the runtime hands out [begin, end).
//
// A nest is for a CPU (threads == 0) or for a device (threads > 0). A device runs each Parallel iteration as one block
// of `threads` threads; every statement is run by all of them, but for the body of a Thread loop, whose iterations are
// dealt out. Locals, variables and Register buffers are a thread's own. Threads wait for each other at a Barrier alone,
// which also makes their stores seen; a warp is 32 neighbouring threads. Device nests have no Vector loops and no
// Scratch, CPU nests nothing of the above.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace trainc::loop {

// --- expressions: immutable, shared
enum class ExprKind : uint8_t { Int, Float, Var, Local, Load, Apply, Fma, Pair, Dot };

struct ExprNode;
using Expr = std::shared_ptr<const ExprNode>;

struct ExprNode {
  ExprKind kind;
  DType dtype;             // of the value. Int: not a float dtype; Float: a float dtype; Var: I64
  int64_t int_value = 0;   // Int
  double float_value = 0;  // Float
  int id = -1;             // Var, Local, Load: which variable, local, buffer of the nest
  int64_t extent = -1;     // Var: its VarInfo::extent, for range_of
  Op op = Op::Input;       // Apply: an elementwise Op of the graph, with its meaning there. f32 transcendental
                           // functions are computed in f32 at eager's accuracy. BF16/F16 never reach arithmetic:
                           // they are loaded, cast to F32, and cast back to be stored.
                           // I64 Div, FloorDiv and Mod on indices have positive divisors.
  // Load: {index, or index and a bool guard: false gives 0 and touches no memory}.
  // Apply: operands.
  // Fma: a, b, c of a * b + c.
  // Pair: two bf16, low half and high half of an i32.
  // Dot: pairs a, b and f32 c of a.low * b.low + (a.high * b.high + c), rounded once a product; denormals among
  // operands and results may count as zero (the AVX-512-BF16 instruction's do).
  std::vector<Expr> args;
};

Expr integer(int64_t, DType = DType::I64);
Expr real(double, DType);
Expr apply(Op, std::vector<Expr>);  // result dtype as ops.def says; not for Cast
Expr cast(Expr, DType);
Expr bitcast(Expr, DType);         // as wide
Expr fma(Expr a, Expr b, Expr c);  // one rounding
Expr pair(Expr low, Expr high);
Expr dot(Expr a, Expr b, Expr c);
// every load of `e` under `guard`: where that is false no memory is touched, and the value means nothing
Expr guarded(const Expr& e, const Expr& guard);
// Index arithmetic, simplified at once (constants folded, x*1, x+0, and with the ranges of variables, (i*256+j)/256 ->
// i).
Expr operator+(const Expr&, const Expr&);
Expr operator-(const Expr&, const Expr&);
Expr operator*(const Expr&, int64_t);
Expr floor_div(const Expr&, int64_t divisor);  // divisor > 0, value >= 0
Expr mod(const Expr&, int64_t divisor);
/// The range [low, high] of an index expression when it is known from the extents of its variables.
struct Range {
  int64_t low = 0, high = 0;
  bool known = false;
};
Range range_of(const Expr&);

// --- statements
enum class LoopKind : uint8_t { Serial, Parallel, Vector, Unroll, Thread };
enum class StmtKind : uint8_t {
  Block,
  For,
  Store,
  Let,
  Reduce,
  Check,
  Prefetch,
  Transpose,
  TileZero,
  TileLoad,
  TileDot,
  TileStore,
  Barrier,
  WarpReduce,
  Mma,
  Copy,
  CopyAsync,
  CommitCopies,
  WaitCopies,
  LoadMatrix
};

struct StmtNode;
using Stmt = std::shared_ptr<const StmtNode>;

struct StmtNode {
  StmtKind kind;
  std::vector<Stmt> body;  // Block: in order; For: one
  // For: var from 0 up to `extent`
  LoopKind loop = LoopKind::Serial;
  int var = -1;
  // Parallel: ignored by the code (the runtime gives [begin, end)), LoopNest::parallel_extent says it.
  // Unroll: a number. Serial, Vector: any index expression.
  // Thread: iteration i is run by thread i % threads of the block; the extent is the same in all of them.
  Expr extent;
  int lanes = 1;  // Vector: 1, 2, 4, 8, 16, 32 or 64; Transpose: 2, 4, 8 or 16; Copy: 2, 4, 8 or 16
  // Store
  int buffer = -1;
  Expr index, value;  // Let, Reduce: `value` too
  // Let: binds `local` to value, from here to the end of the enclosing block.
  // Reduce: local = local <combine> value. The local was bound by a Let (its start value) before the enclosing loops.
  //   On a CPU a Sum of f32 may run in an f64 local: each term is widened, which loses nothing, and added in f64.
  //   Inside a Vector loop, of a local bound outside it, the emitter keeps one partial result a lane (started from the
  //   combine's neutral element), and folds the lanes after that loop in a fixed tree: halves added, log2(lanes) times,
  //   and at last combine(start value, folded). So the order of sums depends on the nest alone. The local is not read
  //   inside that loop. A local bound inside the Vector loop is one value a lane, and is reduced in its lane.
  //   Partial sums of floats come in runs (runs.h): kRun whole vectors are added in the terms' dtype, the runs of a
  //   lane in the local's; where that is no wider, kRuns at a time make a longer run, and so on, kLevels in all. The
  //   masked last vector is a run of its own. The lanes are folded in the local's dtype.
  int local = -1;
  // Sum, Prod; Max and Min as ops.def, of the value and what came before: NaN wins, of 0.0 and -0.0 what came first.
  ReduceKind combine = ReduceKind::Sum;
  // Check: where `value` (bool) is false, status word `code` is set for the call, and the kernel goes on; the index
  // that failed has been clamped by whoever wrote the nest, so that no memory outside a buffer is touched.
  int code = 0;
  // Prefetch: asks for the cache line of buffer[index] to come nearer, to `level` 1 (L1d) or 2 (L2). It has no effect
  // on any value, and the index need not lie within the buffer. Not of a Register buffer, not inside a Vector loop.
  int level = 0;
  // Transpose: a square block of `lanes` x `lanes` elements of `source` (of the same dtype, another buffer) transposed:
  //   buffer[index + i * pitch + j] = source[value + j * source_pitch + i]   for i, j < lanes; `value` is an index.
  //   From bf16 to i32, pairs are transposed: pair(source[value + j * source_pitch + 2 * i], the element after it).
  //   Not inside a Vector loop, not between Register buffers.
  int source = -1;
  int64_t pitch = 0, source_pitch = 0;
  // TileZero:  buffer = 0.
  // TileLoad:  buffer[i * 16 + j] = source[value + i * source_pitch + j]   for i, j < 16; of a bf16 source, pairs:
  //   element j is pair(source[value + i * source_pitch + 2 * j], the element after it).
  // TileStore: buffer[index + i * pitch + j] = source[i * 16 + j].
  // TileDot:   buffer[i, j] += sum over k < 16 of source[i, k] . other[k, j], pairs of bf16, sums f32 (tdpbf16ps): the
  //   products of the low halves and those of the high halves are summed apart, from 0 and in the order of k; then the
  //   two sums are added, and that to the element. Each step rounds once, to nearest even; denormals count as zero, in
  //   operands and in results.
  // None of them inside a Vector loop.
  int other = -1;
  // Barrier: all threads of the block arrive before any goes on.
  // WarpReduce: local = the locals of the warp's 32 threads combined, the same in each: halves exchanged, 16, 8, 4, 2,
  // 1 apart.
  // Mma: buffer[index ...] += value * second, by a warp together; value and second are Loads of the first element of
  //   each thread's fragment in a Register buffer: m16n8k16 for bf16 operands (8 and 4 elements a thread), m16n8k8 for
  //   f32 ones (4 and 2), which are rounded to tf32; sums are f32 (4 a thread). Which element lies in which thread is
  //   mma.h's, as PTX has it.
  Expr second;
  // Copy: buffer[index + i] = source[value + i]   for i < lanes, `value` an index: one access of at most kCopyBytes.
  //   One of the two is a Register buffer; the other is an Argument or Shared one, whose index is a multiple of lanes.
  //   An argument that does not begin at a multiple of kCopyBytes is read or written element by element.
  //   Of bits, a copy reads 2, 4 or 8 elements of one byte, or writes a byte: those behind the last one mean nothing.
  // CopyAsync: buffer[index + i] = source[value + i]   for i < lanes, which are kCopyBytes: from an Argument that the
  //   nest does not write to a Shared buffer, both indices multiples of lanes, past the thread's registers and while it
  //   goes on. The elements are there for this thread once it has waited, for the others behind a Barrier after that.
  //   `second`, where it is set, is a bool: false gives zeros and reads nothing.
  // CommitCopies: what the thread has begun to copy since the last one is a group, which may be none.
  // WaitCopies: the thread goes on when at most `code` of its groups are under way; those are the last.
  // LoadMatrix: four matrices of 8 rows of 16 bytes in Shared memory, by a warp together: thread l's `value` is where
  //   row l % 8 of matrix l / 8 begins in `source`. Of each, in order, the thread receives mma.h's elements of row l /
  //   4 in a Register buffer from `index` on: two of bf16, l % 4 * 2 and the one after it; one of f32, l % 4. With
  //   `transposed`, of bf16, those of the transposed matrix.
  bool transposed = false;
};

Stmt block(std::vector<Stmt>);
Stmt for_loop(LoopKind, int var, Expr extent, Stmt body, int lanes = 1);
Stmt store(int buffer, Expr index, Expr value);
Stmt let(int local, Expr value);
Stmt reduce(int local, ReduceKind, Expr value);
Stmt check(Expr ok, int code);
Stmt prefetch(int buffer, Expr index, int level);
Stmt transpose(int buffer, Expr index, int64_t pitch, int source, Expr source_index, int64_t source_pitch, int lanes);
Stmt tile_zero(int tile);
Stmt tile_load(int tile, int source, Expr source_index, int64_t source_pitch);
Stmt tile_dot(int sums, int a, int b);
Stmt tile_store(int buffer, Expr index, int64_t pitch, int tile);
Stmt barrier();
Stmt warp_reduce(int local, ReduceKind);
Stmt mma(int sums, Expr index, Expr a, Expr b);
Stmt copy(int buffer, Expr index, int source, Expr source_index, int lanes);
Stmt copy_async(int buffer, Expr index, int source, Expr source_index, int lanes, Expr guard = nullptr);
Stmt commit_copies();
Stmt wait_copies(int groups);
Stmt load_matrix(int buffer, Expr index, int source, Expr source_index, bool transposed);

// --- the nest
enum class Space : uint8_t { Argument, Scratch, Register, Shared, Tile };
struct Buffer {
  std::string name;
  DType dtype = DType::F32;  // Bool is stored as one byte, 0 or 1 (or as `bits`)
  int64_t numel = 0;         // 0 for an Argument: not known (dynamic extent)
  Space space = Space::Argument;
  bool written = false;
  int over = -1;  // Argument: may be the same memory as that argument (in_place.h says when)
  // Bool, an Argument: eight elements a byte, as bytes_of_bits has them. Only read, but for Copies of a device's nest
  bool bits = false;
};
struct VarInfo {
  std::string name;
  int64_t extent = -1; /* -1: not a number */
};
struct LocalInfo {
  std::string name;
  DType dtype;
};

struct LoopNest {
  std::string name;             // also the kernel's symbol
  std::vector<Buffer> buffers;  // Arguments first, in the order of the call
  std::vector<VarInfo> vars;
  std::vector<LocalInfo> locals;
  Stmt body;
  int64_t parallel_extent = 1;  // iterations of the outermost Parallel loop; 1 where there is none
  int threads = 0;              // of a block; 0: a nest for a CPU
  // for explain and the cost model
  int64_t flops = 0, bytes = 0;
  std::vector<std::string> origins;

  int add_buffer(Buffer);
  int add_var(std::string name, int64_t extent = -1);
  int add_local(std::string name, DType);
  Expr var(int id) const;  // carries its extent, for range_of
  Expr local(int id) const;
  Expr load(int buffer, Expr index, Expr guard = nullptr) const;
  int64_t scratch_bytes() const;  // each Scratch buffer rounded up to 64 bytes, in order
  int64_t shared_bytes() const;   // Shared buffers, each rounded up to 16 bytes
};

constexpr int kTileSide = 16, kTileRegisters = 8;  // a tile is a square of f32, or of pairs
constexpr int kWarp = 32;                          // threads
constexpr int64_t kCopyBytes = 16;                 // what a thread reads or writes at a time, at most
constexpr int kMatrices = 4, kMatrixRows = 8;      // of a LoadMatrix; a row is kCopyBytes
constexpr int64_t kBanksBytes = 128;               // what Shared memory gives at once, a word from each bank
constexpr int64_t kSharedBytes = 48 << 10;         // of a block: what every device gives without being asked

/// The text of a nest, as TRAINC_DUMP=loop writes it; parse(print(n)) prints the same.
std::string print(const LoopNest&);
LoopNest parse(std::string_view text);
/// Throws InternalError where a nest breaks the rules above; the list of what is checked opens verify.cpp.
void verify(const LoopNest&);

}  // namespace trainc::loop
