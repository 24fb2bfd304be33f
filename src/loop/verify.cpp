// What is checked of a nest:
//   1. Buffers: Arguments come first; Scratch and Register have a size; Register holds at most kRegisterBytes.
//      An argument `over` another passes in_place.h's check. Buffers of bits are bools, arguments, and
//      never written by a CPU.
//   2. Ids name a variable, a local, a buffer of the nest; a Var node's extent is its VarInfo's.
//   3. A variable is used inside its loop only, and belongs to one loop at a time; a number as extent stays within
//      VarInfo::extent.
//   4. A local is bound by a Let before it is used, in the same block or an enclosing one, with its own dtype.
//   5. Operands have the dtypes that ops.def asks for; bf16 and f16 are loaded, cast and stored, never computed with;
//      indices and extents are i64, guards and checks bool.
//   6. Parallel: at most one, the outermost loop, its extent that of the nest; beside it only what writes no argument.
//   7. Vector: lanes 1, 2, 4, ... 64, or 3, 6, ... 48 where nothing is reduced; no Vector or Parallel loop inside.
//      Unroll: the extent is a number, at most kMaxUnroll.
//   8. Loops inside a Vector loop have extents that do not depend on its variable (one vector, one count).
//   9. Stores go to buffers marked `written`, with the buffer's dtype. An index that is a number, or has a known range,
//      lies within.
//  10. Register buffers: an index is made of numbers, Unroll variables and Vector variables alone, and the Vector loop
//      around has a number as extent.
//  11. Reduce: sum, prod, max or min, of the local's dtype, or on a CPU a sum of f32 in f64; not over the Parallel
//      loop. A local bound outside a Vector loop that reduces into it is not read inside.
//  12. Check: the code is not 0.
//  13. Prefetch: not of a Register buffer, not inside a Vector loop; the level is 1 or 2; CPU nests only.
//  14. Transpose: 2, 4, 8 or 16 lanes, between two buffers of one dtype that is no bool, or from bf16 to i32 (pairs),
//      none of them Register; not inside a Vector loop.
//  15. Device nests: a whole number of warps, at most 1,024 threads; no Vector loop, no Scratch; Shared buffers within
//      kSharedBytes. CPU nests: no Thread loop, Shared buffer, Barrier, WarpReduce or Mma.
//  16. Thread: no Thread loop inside another; stores to arguments and Shared buffers lie in one. Barrier and WarpReduce
//      lie in none.
//  17. Tile buffers: f32 or i32, kTileSide squared elements, at most kTileRegisters of them, CPU nests only; named by
//      tile statements alone, which stand in no Vector loop. TileLoad: of its own dtype, or pairs of bf16, from a
//      buffer that is no Register; TileStore: to one of its own dtype, `written`; TileDot: f32 += i32 * i32.
//  18. Mma: in a Thread loop over all threads of the block; Register operands, bf16 or f32, and f32 sums.
//  19. Copy: 2, 4, 8 or 16 lanes, at most kCopyBytes, between a Register buffer and an Argument or Shared one of its
//      dtype, in a Thread loop; of bits, 8 at most, and to bits, 8. No other statement writes bits.
//  20. CopyAsync: kCopyBytes, from an Argument that the nest does not write to a Shared buffer of its dtype, in a
//      Thread loop. CommitCopies and WaitCopies lie in none, in nests for a device.
//  21. LoadMatrix: in a Thread loop over all threads of the block, from a Shared to a Register buffer of its dtype,
//      bf16 or f32; transposed, of bf16.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <unordered_map>

#include "loop/in_place.h"
#include "loop/loop.h"

namespace trainc::loop {
namespace {

constexpr int64_t kRegisterBytes = 32 * 64 * 4;  // four times what AVX-512 has: more would only be spilled
constexpr int64_t kMaxUnroll = 4096;

enum class Varies : uint8_t { Number, Unrolled, Vector, Other };  // what an index is made of, from least to most

bool has_reduce(const StmtNode& s) {
  return s.kind == StmtKind::Reduce ||
         std::any_of(s.body.begin(), s.body.end(), [](const Stmt& inner) { return has_reduce(*inner); });
}

class Verifier {
 public:
  explicit Verifier(const LoopNest& nest) : nest_(nest), bound_(nest.locals.size()), loops_(nest.vars.size()) {}

  void run() {
    check(nest_.body != nullptr, "no body");
    buffers();
    check(nest_.parallel_extent >= 0, "parallel_extent is negative");
    check(nest_.threads >= 0 && nest_.threads <= 1024 && nest_.threads % kWarp == 0,
          fmt::format("{} threads a block", nest_.threads));
    check(nest_.shared_bytes() <= kSharedBytes,
          fmt::format("{} bytes of Shared buffers; {} is the most", nest_.shared_bytes(), kSharedBytes));
    parallel_ = count_parallel(*nest_.body);
    check(parallel_ <= 1, "more than one Parallel loop");
    check(parallel_ == 1 || nest_.parallel_extent == 1, "parallel_extent without a Parallel loop");
    statement(*nest_.body);
  }

 private:
  // varies: from lane to lane
  struct Binding { bool bound = false, in_vector = false, in_parallel = false, varies = false; };
  struct Loop {
    bool open = false;
    LoopKind kind = LoopKind::Serial;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw InternalError(
        fmt::format("loop nest {}: {}{}", nest_.name, what, where_.empty() ? "" : " (in " + where_ + ")"));
  }
  bool device() const { return nest_.threads > 0; }
  void check(bool ok, const std::string& what) const {
    if (!ok) fail(what);
  }

  void buffers() {
    bool others = false;
    int64_t registers = 0, tiles = 0;
    for (size_t i = 0; i < nest_.buffers.size(); ++i) {
      const int over = nest_.buffers[i].over;
      if (over < 0) continue;
      check(over < static_cast<int>(nest_.buffers.size()),
            fmt::format("buffer {} over one that the nest does not have", nest_.buffers[i].name));
      const std::string why = refuse_in_place(nest_, static_cast<int>(i), over);
      check(why.empty(),
            fmt::format("{} over {}: {}", nest_.buffers[i].name, nest_.buffers[static_cast<size_t>(over)].name, why));
    }
    for (const Buffer& b : nest_.buffers) {
      check(b.space != Space::Argument || !others, fmt::format("argument {} after a buffer that is none", b.name));
      others |= b.space != Space::Argument;
      check(b.numel >= 0, fmt::format("buffer {} has a negative size", b.name));
      if (b.space != Space::Argument)
        check(b.written, fmt::format("buffer {} is the kernel's own, and not marked as written", b.name));
      check(!b.bits || (b.dtype == DType::Bool && b.space == Space::Argument && (!b.written || device())),
            fmt::format("buffer {} of bits is no bool, no argument, or written by a CPU", b.name));
      check(b.space != Space::Scratch || !device(), fmt::format("Scratch buffer {} in a nest for a device", b.name));
      check(b.space != Space::Tile ||
                (!device() && (b.dtype == DType::F32 || b.dtype == DType::I32) && b.numel == kTileSide * kTileSide),
            fmt::format("Tile buffer {} in a nest for a device, or not {} elements of f32 or i32", b.name,
                        kTileSide * kTileSide));
      check(b.space != Space::Shared || device(), fmt::format("Shared buffer {} in a nest for a CPU", b.name));
      tiles += b.space == Space::Tile;
      if (b.space == Space::Register) registers += b.numel * size_of(b.dtype);
    }
    check(tiles <= kTileRegisters, fmt::format("{} Tile buffers; there are {} registers", tiles, kTileRegisters));
    check(registers <= kRegisterBytes,
          fmt::format("{} bytes of Register buffers; {} is the most", registers, kRegisterBytes));
  }

  static int count_parallel(const StmtNode& s) {
    int n = s.kind == StmtKind::For && s.loop == LoopKind::Parallel;
    for (const Stmt& inner : s.body) n += count_parallel(*inner);
    return n;
  }

  // --- expressions: returns what the value is made of; `seen` keeps shared nodes from being walked twice

  // on_vector: depends on the open Vector loop's variable
  struct ExprFacts {
    Varies varies = Varies::Number;
    bool on_vector = false;
  };

  ExprFacts expression(const Expr& e) {
    check(e != nullptr, "a missing expression");
    if (const auto at = seen_.find(e.get()); at != seen_.end()) return at->second;
    ExprFacts w;
    for (const Expr& a : e->args) {
      const ExprFacts inner = expression(a);
      w.varies = std::max(w.varies, inner.varies);
      w.on_vector |= inner.on_vector;
    }
    switch (e->kind) {
      case ExprKind::Int: check(!is_float(e->dtype), "an Int of a float dtype"); break;
      case ExprKind::Float: check(is_float(e->dtype), "a Float of an integer dtype"); break;
      case ExprKind::Var: {
        check(e->id >= 0 && e->id < static_cast<int>(nest_.vars.size()), "a variable that the nest does not have");
        const VarInfo& v = nest_.vars[static_cast<size_t>(e->id)];
        const Loop& loop = loops_[static_cast<size_t>(e->id)];
        check(loop.open, fmt::format("variable {} outside its loop", v.name));
        check(e->extent == v.extent && e->dtype == DType::I64,
              fmt::format("variable {} has another extent than the nest's", v.name));
        w.varies = loop.kind == LoopKind::Unroll   ? Varies::Unrolled
                   : loop.kind == LoopKind::Vector ? Varies::Vector
                                                   : Varies::Other;
        w.on_vector = loop.kind == LoopKind::Vector;
        break;
      }
      case ExprKind::Local: {
        check(e->id >= 0 && e->id < static_cast<int>(nest_.locals.size()), "a local that the nest does not have");
        const LocalInfo& l = nest_.locals[static_cast<size_t>(e->id)];
        const Binding& b = bound_[static_cast<size_t>(e->id)];
        check(b.bound, fmt::format("local {} is used where it is not bound", l.name));
        check(e->dtype == l.dtype, fmt::format("local {} is {}, not {}", l.name, name_of(l.dtype), name_of(e->dtype)));
        check(!running_.contains(e->id) || b.in_vector,
              fmt::format("local {} is read in the Vector loop that reduces into it", l.name));
        w.varies = Varies::Other;
        w.on_vector = b.varies;
        break;
      }
      case ExprKind::Load: {
        const Buffer& b = buffer(e->id);
        check(e->args.size() == 1 || e->args.size() == 2, "a Load without an index");
        check(e->dtype == b.dtype,
              fmt::format("load of {}: {} elements as {}", b.name, name_of(b.dtype), name_of(e->dtype)));
        check(e->args.size() == 1 || e->args[1]->dtype == DType::Bool,
              fmt::format("load of {}: the guard is not bool", b.name));
        index(b, e->args[0], e->args.size() == 2);
        w.varies = Varies::Other;
        break;
      }
      case ExprKind::Fma:
        check(e->args.size() == 3 && (e->dtype == DType::F32 || e->dtype == DType::F64),
              "fma of something that is not f32 or f64");
        for (const Expr& a : e->args) check(a->dtype == e->dtype, "fma's operands are of several dtypes");
        break;
      case ExprKind::Pair:
        check(e->args.size() == 2 && e->dtype == DType::I32, "a pair that is not of two, or not i32");
        for (const Expr& a : e->args) check(a->dtype == DType::BF16, fmt::format("a pair of {}", name_of(a->dtype)));
        break;
      case ExprKind::Dot:
        check(e->args.size() == 3 && e->dtype == DType::F32, "a dot that is not of three, or not f32");
        check(e->args[0]->dtype == DType::I32 && e->args[1]->dtype == DType::I32 && e->args[2]->dtype == DType::F32,
              "dot's operands are not two pairs and an f32");
        break;
      case ExprKind::Apply: operands(*e); break;
    }
    return seen_[e.get()] = w;
  }

  void operands(const ExprNode& e) {
    const std::string name(name_of(e.op));
    check(is_elementwise(e.op), name + " is not elementwise");
    check(static_cast<int>(e.args.size()) == arity_of(e.op), name + " with a wrong number of operands");
    if (e.op == Op::Cast) return;
    if (e.op == Op::Bitcast) return check(size_of(e.dtype) == size_of(e.args[0]->dtype), name + " changes the width");
    const bool select = e.op == Op::Select;
    const DType of = e.args[select ? 1 : 0]->dtype;
    check(!select || e.args[0]->dtype == DType::Bool, "select's condition is not bool");
    for (size_t i = select ? 1 : 0; i < e.args.size(); ++i)
      check(e.args[i]->dtype == of, name + "'s operands are of several dtypes");
    check(select || (of != DType::BF16 && of != DType::F16),
          fmt::format("{} in {}: cast to f32 first", name, name_of(of)));
    const bool compares = e.op == Op::Lt || e.op == Op::Le || e.op == Op::Eq || e.op == Op::Ne || e.op == Op::IsNan;
    check(e.dtype == (compares ? DType::Bool : of),
          fmt::format("{} of {} gives no {}", name, name_of(of), name_of(e.dtype)));
  }

  const Buffer& buffer(int id) const {
    check(id >= 0 && id < static_cast<int>(nest_.buffers.size()), "a buffer that the nest does not have");
    return nest_.buffers[static_cast<size_t>(id)];
  }

  void index(const Buffer& b, const Expr& e, bool guarded) {
    check(b.space != Space::Tile, fmt::format("an element of Tile buffer {}", b.name));
    const ExprFacts w = expression(e);
    check(e->dtype == DType::I64, fmt::format("an index of {} is not i64", b.name));
    check(b.space != Space::Register || w.varies != Varies::Other,
          fmt::format("an index of Register buffer {} depends on more than Unroll and Vector variables", b.name));
    check(b.space != Space::Register || !in_vector_ || vector_counted_,
          fmt::format("Register buffer {} in a Vector loop whose extent is no number", b.name));
    const Range r = range_of(e);
    if (!r.known || guarded || b.numel == 0) return;
    // The range's ends are reached where the index is one variable or a sum of them: the only cases worth an error are
    // ends that lie outside altogether; the interpreter sees the others.
    check(r.high >= 0 && r.low < b.numel,
          fmt::format("an index of {} is within [{}, {}], its size is {}", b.name, r.low, r.high, b.numel));
  }

  // --- statements

  void statement(const StmtNode& s) {
    seen_.clear();
    switch (s.kind) {
      case StmtKind::Block: {
        const std::vector<Binding> before = bound_;
        for (const Stmt& inner : s.body) statement(*inner);
        leave(before);
        break;
      }
      case StmtKind::For: loop(s); break;
      case StmtKind::Store: {
        const Buffer& b = buffer(s.buffer);
        check(b.written, fmt::format("store to {}, which is not marked as written", b.name));
        check(!b.bits, fmt::format("store to {}, which is bits", b.name));
        check(!device() || in_thread_ || b.space == Space::Register,
              fmt::format("every thread stores to {}: a Thread loop is missing", b.name));
        check(parallel_ == 0 || in_parallel_ || b.space != Space::Argument,
              fmt::format("store to argument {} beside the Parallel loop", b.name));
        index(b, s.index, false);
        expression(s.value);
        check(s.value->dtype == b.dtype,
              fmt::format("store of {} to {}, which is {}", name_of(s.value->dtype), b.name, name_of(b.dtype)));
        break;
      }
      case StmtKind::Let: {
        const LocalInfo& l = local(s.local);
        const ExprFacts w = expression(s.value);
        check(s.value->dtype == l.dtype,
              fmt::format("let {}: {} = a value of {}", l.name, name_of(l.dtype), name_of(s.value->dtype)));
        check(!bound_[static_cast<size_t>(s.local)].bound, fmt::format("local {} is bound twice", l.name));
        bound_[static_cast<size_t>(s.local)] = {true, in_vector_, in_parallel_, w.on_vector};
        break;
      }
      case StmtKind::Reduce: {
        const LocalInfo& l = local(s.local);
        Binding& b = bound_[static_cast<size_t>(s.local)];
        check(b.bound, fmt::format("local {} is reduced into where it is not bound", l.name));
        check(b.in_parallel == in_parallel_, fmt::format("local {} is reduced over the Parallel loop", l.name));
        check(s.combine <= ReduceKind::Min, "a Reduce that is not sum, prod, max or min");
        const ExprFacts w = expression(s.value);
        const bool widened =
            !device() && s.combine == ReduceKind::Sum && l.dtype == DType::F64 && s.value->dtype == DType::F32;
        check(widened || (s.value->dtype == l.dtype && l.dtype != DType::BF16 && l.dtype != DType::F16),
              fmt::format("{} is {}, reduced with {}", l.name, name_of(l.dtype), name_of(s.value->dtype)));
        if (b.in_vector) b.varies |= w.on_vector;
        break;
      }
      case StmtKind::Barrier:
        check(device() && !in_thread_, "a Barrier in a Thread loop, or in a nest for a CPU");
        break;
      case StmtKind::WarpReduce: {
        const LocalInfo& l = local(s.local);
        check(device() && !in_thread_, "a WarpReduce in a Thread loop, or in a nest for a CPU");
        check(bound_[static_cast<size_t>(s.local)].bound,
              fmt::format("local {} is reduced where it is not bound", l.name));
        check(s.combine <= ReduceKind::Min && l.dtype != DType::BF16 && l.dtype != DType::F16,
              "a WarpReduce that is not sum, prod, max or min of numbers");
        break;
      }
      case StmtKind::Mma: {
        check(whole_block_, "an Mma outside a Thread loop over all threads");
        check(s.value && s.second && s.value->kind == ExprKind::Load && s.second->kind == ExprKind::Load,
              "an Mma whose operands are no loads");
        index(buffer(s.buffer), s.index, false);
        expression(s.value);
        expression(s.second);
        for (int id : {s.buffer, s.value->id, s.second->id})
          check(buffer(id).space == Space::Register, "an Mma outside registers");
        check(buffer(s.buffer).dtype == DType::F32, "an Mma whose sums are not f32");
        check(s.value->dtype == s.second->dtype && (s.value->dtype == DType::BF16 || s.value->dtype == DType::F32),
              "an Mma of other than bf16 or f32");
        break;
      }
      case StmtKind::Copy: {
        const Buffer &to = buffer(s.buffer), &from = buffer(s.source);
        check(in_thread_, "a Copy outside a Thread loop");
        check(s.lanes >= 2 && s.lanes <= 16 && std::has_single_bit(unsigned(s.lanes)) &&
                  s.lanes * size_of(to.dtype) <= kCopyBytes,
              fmt::format("a copy of {} elements of {}", s.lanes, name_of(to.dtype)));
        check((to.space == Space::Register) != (from.space == Space::Register) && to.dtype == from.dtype,
              fmt::format("a copy from {} to {}", from.name, to.name));
        check(to.written, fmt::format("copy to {}, which is not marked as written", to.name));
        check(!to.bits || s.lanes == 8,
              fmt::format("a copy of {} bits to {}: a thread writes bytes", s.lanes, to.name));
        check(!from.bits || s.lanes <= 8, fmt::format("a copy of {} bits from {}", s.lanes, from.name));
        index(to, s.index, false);
        index(from, s.value, false);
        break;
      }
      case StmtKind::CopyAsync: {
        const Buffer &to = buffer(s.buffer), &from = buffer(s.source);
        check(device() && in_thread_, "a CopyAsync outside a Thread loop");
        check(to.space == Space::Shared && from.space == Space::Argument && to.dtype == from.dtype && !from.bits,
              fmt::format("an asynchronous copy from {} to {}", from.name, to.name));
        check(s.lanes * size_of(to.dtype) == kCopyBytes,
              fmt::format("an asynchronous copy of {} elements of {}", s.lanes, name_of(to.dtype)));
        check(to.written, fmt::format("copy to {}, which is not marked as written", to.name));
        check(!from.written, fmt::format("an asynchronous copy from {}, which is written", from.name));
        index(to, s.index, false);
        index(from, s.value, s.second != nullptr);
        if (s.second) {
          expression(s.second);
          check(s.second->dtype == DType::Bool, "an asynchronous copy whose guard is not bool");
        }
        break;
      }
      case StmtKind::CommitCopies:
        check(device() && !in_thread_, "a CommitCopies in a Thread loop, or in a nest for a CPU");
        break;
      case StmtKind::WaitCopies:
        check(device() && !in_thread_, "a WaitCopies in a Thread loop, or in a nest for a CPU");
        check(s.code >= 0, "a WaitCopies for less than all groups");
        break;
      case StmtKind::LoadMatrix: {
        const Buffer &to = buffer(s.buffer), &from = buffer(s.source);
        check(whole_block_, "a LoadMatrix outside a Thread loop over all threads");
        check(to.space == Space::Register && from.space == Space::Shared && to.dtype == from.dtype,
              fmt::format("a LoadMatrix from {} to {}", from.name, to.name));
        check(to.dtype == DType::BF16 || (to.dtype == DType::F32 && !s.transposed),
              fmt::format("a LoadMatrix of {}", name_of(to.dtype)));
        check(to.written, fmt::format("LoadMatrix to {}, which is not marked as written", to.name));
        index(to, s.index, false);
        index(from, s.value, false);
        break;
      }
      case StmtKind::Check:
        expression(s.value);
        check(s.value->dtype == DType::Bool, "a Check of something that is not bool");
        check(s.code != 0, "a Check with code 0");
        break;
      case StmtKind::Transpose: {
        const Buffer &to = buffer(s.buffer), &from = buffer(s.source);
        check(s.lanes == 2 || s.lanes == 4 || s.lanes == 8 || s.lanes == 16,
              fmt::format("a transpose of {} lanes", s.lanes));
        check(to.written, fmt::format("transpose to {}, which is not marked as written", to.name));
        check(s.buffer != s.source, fmt::format("a transpose of {} into itself", to.name));
        check(to.space != Space::Register && from.space != Space::Register,
              fmt::format("a transpose from {} to {}: one is a Register buffer", from.name, to.name));
        const bool pairs = to.dtype == DType::I32 && from.dtype == DType::BF16;
        check(pairs || (to.dtype == from.dtype && to.dtype != DType::Bool),
              fmt::format("a transpose from {} to {}", name_of(from.dtype), name_of(to.dtype)));
        check(!in_vector_, fmt::format("a transpose to {} inside a Vector loop", to.name));
        check(parallel_ == 0 || in_parallel_ || to.space != Space::Argument,
              fmt::format("transpose to argument {} beside the Parallel loop", to.name));
        check(s.value != nullptr, "a transpose without a source index");
        index(to, s.index, false);
        index(from, s.value, false);
        break;
      }
      case StmtKind::TileZero: tile(s.buffer); break;
      case StmtKind::TileLoad: {
        const Buffer &to = tile(s.buffer), &from = buffer(s.source);
        check(from.space != Space::Register, fmt::format("a tile load from Register buffer {}", from.name));
        check(to.dtype == from.dtype || (to.dtype == DType::I32 && from.dtype == DType::BF16),
              fmt::format("a tile load from {} to {}", name_of(from.dtype), name_of(to.dtype)));
        check(s.value != nullptr, "a tile load without a source index");
        index(from, s.value, false);
        break;
      }
      case StmtKind::TileStore: {
        const Buffer &to = buffer(s.buffer), &from = tile(s.source);
        check(to.written, fmt::format("tile store to {}, which is not marked as written", to.name));
        check(to.space != Space::Register, fmt::format("a tile store to Register buffer {}", to.name));
        check(to.dtype == from.dtype,
              fmt::format("a tile store from {} to {}", name_of(from.dtype), name_of(to.dtype)));
        check(parallel_ == 0 || in_parallel_ || to.space != Space::Argument,
              fmt::format("tile store to argument {} beside the Parallel loop", to.name));
        index(to, s.index, false);
        break;
      }
      case StmtKind::TileDot:
        check(tile(s.buffer).dtype == DType::F32 && tile(s.source).dtype == DType::I32 &&
                  tile(s.other).dtype == DType::I32,
              "a tile dot that is not f32 += i32 * i32");
        break;
      case StmtKind::Prefetch: {
        check(!device(), "a Prefetch in a nest for a device");
        const Buffer& b = buffer(s.buffer);
        check(b.space != Space::Register && b.space != Space::Tile,
              fmt::format("a prefetch of Register buffer {}", b.name));
        check(!in_vector_, fmt::format("a prefetch of {} inside a Vector loop", b.name));
        check(s.level == 1 || s.level == 2,
              fmt::format("a prefetch of {} to cache level {}; 1 and 2 are there", b.name, s.level));
        expression(s.index);  // wherever it points: nothing is touched
        check(s.index->dtype == DType::I64, fmt::format("an index of {} is not i64", b.name));
        break;
      }
    }
  }

  const Buffer& tile(int id) const {
    const Buffer& b = buffer(id);
    check(b.space == Space::Tile, fmt::format("{} is no Tile buffer", b.name));
    check(!in_vector_, fmt::format("tile {} inside a Vector loop", b.name));
    return b;
  }

  const LocalInfo& local(int id) const {
    check(id >= 0 && id < static_cast<int>(nest_.locals.size()), "a local that the nest does not have");
    return nest_.locals[static_cast<size_t>(id)];
  }

  // What a block or a loop has bound goes out of scope; what its Reduces did to the others stays.
  void leave(const std::vector<Binding>& before) {
    for (size_t i = 0; i < bound_.size(); ++i)
      if (!before[i].bound) bound_[i] = {};
  }

  static void reduced(const StmtNode& s, std::set<int>& into) {
    if (s.kind == StmtKind::Reduce) into.insert(s.local);
    for (const Stmt& inner : s.body) reduced(*inner, into);
  }

  void loop(const StmtNode& s) {
    check(s.var >= 0 && s.var < static_cast<int>(nest_.vars.size()),
          "a loop over a variable that the nest does not have");
    check(s.body.size() == 1 && s.body[0] && s.extent, "a loop without a body or an extent");
    const VarInfo& v = nest_.vars[static_cast<size_t>(s.var)];
    Loop& self = loops_[static_cast<size_t>(s.var)];
    check(!self.open, fmt::format("two loops over {}, one inside the other", v.name));
    check(s.extent->dtype == DType::I64, fmt::format("the extent of {} is not i64", v.name));
    check(!expression(s.extent).on_vector,
          fmt::format("the extent of {} differs between the lanes of the Vector loop around it", v.name));
    const bool number = s.extent->kind == ExprKind::Int;
    check(v.extent < 0 || !number || s.extent->int_value <= v.extent,
          fmt::format("the extent of {} is {}; its variable promises at most {}", v.name,
                      number ? s.extent->int_value : 0, v.extent));

    const std::string outer = where_;
    where_ += (where_.empty() ? "" : " > ") + (v.name.empty() ? fmt::format("i{}", s.var) : v.name);
    switch (s.loop) {
      case LoopKind::Serial: break;
      case LoopKind::Parallel:
        check(depth_ == 0, "a Parallel loop inside another loop");
        check(!number || s.extent->int_value == nest_.parallel_extent,
              fmt::format("the Parallel loop's extent is not parallel_extent, {}", nest_.parallel_extent));
        break;
      case LoopKind::Thread:
        check(device(), "a Thread loop in a nest for a CPU");
        check(!in_thread_, "a Thread loop inside a Thread loop");
        break;
      case LoopKind::Vector:
        check(!device(), "a Vector loop in a nest for a device");
        check(!in_vector_, "a Vector loop inside a Vector loop");
        check(s.lanes >= 1 && s.lanes <= 64 &&
                  (std::has_single_bit(unsigned(s.lanes)) ||
                   (s.lanes % 3 == 0 && std::has_single_bit(unsigned(s.lanes / 3)) && !has_reduce(s))),
              fmt::format("a Vector loop of {} lanes", s.lanes));
        break;
      case LoopKind::Unroll:
        check(number && s.extent->int_value <= kMaxUnroll,
              fmt::format("an Unroll loop whose extent is no number up to {}", kMaxUnroll));
        break;
    }

    const std::vector<Binding> before = bound_;
    const bool vector = s.loop == LoopKind::Vector, parallel = s.loop == LoopKind::Parallel;
    self = {true, s.loop};
    ++depth_;
    in_vector_ |= vector;
    in_parallel_ |= parallel;
    if (s.loop == LoopKind::Thread) {
      in_thread_ = true;
      whole_block_ = number && s.extent->int_value == nest_.threads;
    }
    if (vector) {
      vector_counted_ = number;
      reduced(*s.body[0], running_);
    }
    statement(*s.body[0]);
    if (vector) {
      running_.clear();
      in_vector_ = false;
    }
    if (parallel) in_parallel_ = false;
    if (s.loop == LoopKind::Thread) in_thread_ = whole_block_ = false;
    --depth_;
    self.open = false;
    leave(before);
    where_ = outer;
  }

  const LoopNest& nest_;
  std::vector<Binding> bound_;
  std::vector<Loop> loops_;
  std::unordered_map<const ExprNode*, ExprFacts> seen_;  // of one statement: scopes do not change within it
  std::set<int> running_;                                // locals that the open Vector loop reduces into
  std::string where_;
  int depth_ = 0, parallel_ = 0;
  bool in_vector_ = false, in_parallel_ = false, vector_counted_ = false;
  bool in_thread_ = false, whole_block_ = false;
};

}  // namespace

void verify(const LoopNest& nest) { Verifier(nest).run(); }

}  // namespace trainc::loop
