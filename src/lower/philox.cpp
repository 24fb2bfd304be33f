// A mask drawn by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), dealt out as the
// framework's dropout does: thread t of T counts in the sequence t, and its k-th call gives four numbers, for elements
//   vector 4, 8  4 q ... 4 q + 3, where the call q = ((k / calls) T + t) calls + k % calls, and `calls` = vector / 4
//                make a thread's neighbours
//   vector 2     2 q, 2 q + 1, q = k T + t; the other two numbers are thrown away
//   vector 1     4 T k + t + i T for i < 4
// A kernel's thread makes one call, or as many as fill a byte where the mask is bits.
// Written out in i64 arithmetic, so that the interpreter and the printer know nothing of it.
#include <array>

#include "cost/loops.h"
#include "lower/kernels.h"
#include "support/division.h"

namespace trainc::lower {
namespace {

using loop::integer;
using loop::LoopKind;

constexpr int64_t kWord = 0xffffffff;

Expr low(Expr x) { return loop::apply(Op::And, {std::move(x), integer(kWord)}); }
// a shift, whatever the sign
Expr high(Expr x) { return low(loop::apply(Op::FloorDiv, {std::move(x), integer(int64_t{1} << 32)})); }
// wraps: the 64 bits of u32 * u32
Expr times(Expr x, int64_t y) { return loop::apply(Op::Mul, {std::move(x), integer(y)}); }
Expr flip(Expr x, Expr y) { return loop::apply(Op::Xor, {std::move(x), std::move(y)}); }

/// The numbers below it are those that the framework keeps: u = x 2^-32 + 2^-33, rounded to f32, is less than p.
int64_t threshold(double p) {
  const auto kept = [&](int64_t x) { return static_cast<double>(static_cast<float>(x) * 0x1p-32f + 0x1p-33f) < p; };
  int64_t below = 0, from = kWord + 1;  // all of [0, below) are kept, none of [from, 2^32)
  while (below < from) {
    const int64_t middle = (below + from) / 2;
    if (kept(middle)) below = middle + 1;
    else from = middle;
  }
  return from;
}

class Builder {
 public:
  Builder(const Schedule& schedule, const Group& group)
      : node_(group.values[0]), attr_(node_->as<RandomAttr>()), bits_(schedule.bits.contains(node_)) {
    nest_.name = kernel_name(group) + "_philox";
    nest_.threads = cost::kBlockThreads;
    state_ = nest_.add_buffer({"state", DType::I64, 2, loop::Space::Argument, false});
    mask_ = nest_.add_buffer({"mask", DType::Bool, node_->type.numel(), loop::Space::Argument, true, -1, bits_});
    kernel_.arguments = {nullptr, node_};
  }

  LoweredKernel run() {
    // elements of a call that neighbour each other
    const int64_t n = node_->type.numel(), each = attr_.vector >= 4 ? 4 : attr_.vector;
    const int64_t calls = attr_.vector == 1 ? attr_.threads * ceil_div(n, 4 * attr_.threads) : n / each,
                  together = bits_ ? 8 / each : 1, threads = ceil_div(calls, together);
    nest_.parallel_extent = ceil_div(threads, cost::kBlockThreads);
    const int block = nest_.add_var("block", nest_.parallel_extent),
              thread = nest_.add_var("thread", cost::kBlockThreads);
    const Expr first = nest_.var(block) * cost::kBlockThreads + nest_.var(thread);
    if (attr_.vector > 1) kept_ = nest_.add_buffer({"kept", DType::Bool, together * each, loop::Space::Register, true});
    for (int64_t i = 0; i < together; ++i) {
      const Expr q = first * together + integer(i);
      call(q, n, each, i * each, calls % together == 0 ? nullptr : loop::apply(Op::Lt, {q, integer(calls)}));
    }
    if (attr_.vector > 1)
      out_.push_back(
          loop::copy(mask_, first * (together * each), kept_, integer(0), static_cast<int>(together * each)));
    Stmt body = loop::block(std::move(out_));
    if (threads % cost::kBlockThreads != 0) body = where(first, threads, std::move(body));
    body = loop::for_loop(LoopKind::Thread, thread, integer(cost::kBlockThreads), std::move(body));
    nest_.body = loop::for_loop(LoopKind::Parallel, block, integer(nest_.parallel_extent), std::move(body));
    return std::move(kernel_);
  }

 private:
  /// The call q: its numbers to where they belong, of `kept_` from `to` on. Where it does not `exist`, nothing is kept.
  void call(const Expr& q, int64_t n, int64_t each, int64_t to, const Expr& exists) {
    const int64_t of_a_thread = std::max<int64_t>(attr_.vector / 4, 1);
    const Expr piece = floor_div(q, of_a_thread), sequence = mod(piece, attr_.threads),
               turn = floor_div(piece, attr_.threads);
    const Expr k = turn * of_a_thread + mod(q, of_a_thread);

    // offsets are multiples of 4
    const Expr from = loop::apply(Op::FloorDiv, {nest_.load(state_, integer(1)), integer(4)});
    const Expr counter = name("counter", from + k), seed = name("seed", nest_.load(state_, integer(0)));
    const std::array<Expr, 4> numbers =
        philox({low(counter), high(counter), name("sequence", sequence), integer(0)}, low(seed), high(seed));
    for (int i = 0; i < (attr_.vector == 1 ? 4 : each); ++i) {
      if (attr_.vector == 1 && i * attr_.threads >= n) break;
      const Expr kept = loop::apply(Op::Lt, {numbers[i], integer(threshold(attr_.p))});
      if (attr_.vector > 1) {
        out_.push_back(loop::store(kept_, integer(to + i), exists ? loop::apply(Op::And, {exists, kept}) : kept));
        continue;
      }
      const Expr at = turn * (4 * attr_.threads) + sequence + integer(i * attr_.threads);
      out_.push_back(where(at, n, loop::store(mask_, at, kept)));
    }
  }

  Expr name(const char* local, Expr value) {
    const int id = nest_.add_local(local, DType::I64);
    out_.push_back(loop::let(id, std::move(value)));
    return nest_.local(id);
  }
  /// The language has no `if`: a loop of 0 or 1 iterations is one.
  Stmt where(const Expr& index, int64_t below, Stmt body) {
    return loop::for_loop(LoopKind::Serial, nest_.add_var("exists", 1),
                          cast(loop::apply(Op::Lt, {index, integer(below)}), DType::I64), std::move(body));
  }

  std::array<Expr, 4> philox(std::array<Expr, 4> c, Expr key0, Expr key1) {
    for (int round = 0; round < 10; ++round) {
      const Expr a = name("product", times(c[0], 0xD2511F53)), b = name("product", times(c[2], 0xCD9E8D57));
      c = {name("x", flip(flip(high(b), c[1]), key0)), low(b), name("x", flip(flip(high(a), c[3]), key1)), low(a)};
      if (round == 9) break;
      key0 = name("key", low(key0 + integer(0x9E3779B9)));
      key1 = name("key", low(key1 + integer(0xBB67AE85)));
    }
    return c;
  }

  LoweredKernel kernel_;
  loop::LoopNest& nest_ = kernel_.nest;
  const Node* node_;
  const RandomAttr& attr_;
  const bool bits_;  // of the mask
  int state_ = -1, mask_ = -1, kept_ = -1;
  std::vector<Stmt> out_;
};

}  // namespace

LoweredKernel lower_philox(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  require(options.target.draws_in_kernels, "a mask of a device's generator for a target whose kernels do not draw");
  return Builder(schedule, group).run();
}

}  // namespace trainc::lower
