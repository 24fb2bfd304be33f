// The threads of a block run a statement at a time, those that are active in it: where a loop's extent differs, some
// wait.
#include "interpret/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "interpret/code.h"
#include "interpret/report.h"
#include "interpret/traffic.h"
#include "interpret/value.h"
#include "loop/mma.h"
#include "support/division.h"
#include "support/rounding.h"

namespace trainc::interpret {
namespace {

using namespace loop;

using Values = std::vector<Value>;  // one a thread of the block
using Threads = std::vector<int>;   // the active ones, ascending

constexpr int64_t kNobody = -1, kSeveral = -2;
constexpr int64_t kFollowed = 8;  // iterations of a loop, where requests are counted

// Who touched an element last, and between which barriers. Threads are numbered through all blocks.
struct Access { int64_t writer = kNobody, write_epoch = 0, reader = kNobody, read_epoch = 0, reader_block = kNobody; };

struct BufferState {
  std::vector<uint8_t> own;  // Shared, Register (an element a thread)
  uint8_t* bytes = nullptr;
  int64_t numel = 0;
  bool watched = false;          // elements must be written before they are read
  std::vector<int64_t> defined;  // watched: by which block, plus one (Shared, Register); or by any (arguments)
  std::vector<Access> accesses;  // of what may race
  std::vector<char> under_way;   // Shared: whether an asynchronous copy of it has not been waited for
};

// What a thread has begun to copy: elements of Shared buffers, by group; the last group is not committed.
struct CopyGroups {
  using Group = std::vector<std::pair<int, int64_t>>;  // buffer, element
  std::deque<Group> committed;
  Group open;
};

float tf32(double v) {  // cvt.rna.tf32.f32: 10 bits of mantissa, ties away from zero
  const float f = static_cast<float>(v);
  if (!std::isfinite(f)) return f;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x1000u) & ~0x1fffu;
  float r;
  std::memcpy(&r, &bits, 4);
  return r;
}

class Device {
 public:
  Device(const LoopNest& nest, const std::vector<View>& arguments, TrafficCount* traffic = nullptr)
      : nest_(nest), threads_(nest.threads), arguments_(arguments), traffic_(traffic) {
    size_t argument = 0;
    for (const Buffer& b : nest.buffers) {
      BufferState s;
      if (b.space == Space::Argument) {
        require(argument < arguments.size(), "interpret: fewer arguments than the nest has");
        const View& v = arguments[argument++];
        s.bytes = v.data;
        s.numel = b.bits ? bits_in(b.numel, v.bytes) : v.bytes / size_of(b.dtype);
        s.watched = !v.initialised;
        if (b.written && v.data) s.accesses.resize(static_cast<size_t>(s.numel));
        if (b.numel != 0 && s.numel != b.numel)
          report_.find(fmt::format("argument {} is given {} elements, the nest says {}", b.name, s.numel, b.numel), "");
      } else {
        s.numel = b.numel;
        s.watched = true;
        s.own.assign(static_cast<size_t>(b.numel * size_of(b.dtype)) *
                         (b.space == Space::Register ? static_cast<size_t>(threads_) : 1),
                     0xff);
        if (b.space == Space::Shared) {
          s.accesses.resize(static_cast<size_t>(b.numel));
          s.under_way.assign(static_cast<size_t>(b.numel), 0);
        }
      }
      if (s.watched)
        s.defined.assign(
            b.space == Space::Register ? static_cast<size_t>(b.numel * threads_) : static_cast<size_t>(s.numel), 0);
      buffers_.push_back(std::move(s));
    }
    require(argument == arguments.size(), "interpret: more arguments than the nest has");
    for (BufferState& s : buffers_)
      if (!s.own.empty()) s.bytes = s.own.data();
    vars_.assign(nest.vars.size(), std::vector<int64_t>(static_cast<size_t>(threads_), 0));
    locals_.assign(nest.locals.size(), Values(static_cast<size_t>(threads_)));
    bound_.assign(nest.locals.size(), std::vector<char>(static_cast<size_t>(threads_), 0));
    copies_.resize(static_cast<size_t>(threads_));
  }

  Findings run(int64_t parallel_extent) {
    Threads all(static_cast<size_t>(threads_));
    for (int t = 0; t < threads_; ++t) all[static_cast<size_t>(t)] = t;
    const StmtNode* body = nest_.body.get();
    while (body->kind == StmtKind::Block && body->body.size() == 1) body = body->body[0].get();
    const bool grid = body->kind == StmtKind::For && body->loop == LoopKind::Parallel;
    const Followed blocks = followed(grid ? parallel_extent : 1);
    for (int64_t b = 0; b < blocks.count; ++b) {
      block_ = blocks.at(b);
      weight_ = blocks.weight;
      ++epoch_;
      for (size_t i = 0; i < buffers_.size(); ++i)  // each block has Shared memory of its own
        if (nest_.buffers[i].space == Space::Shared)
          std::fill(buffers_[i].accesses.begin(), buffers_[i].accesses.end(), Access{});
      if (grid)
        std::fill(vars_[static_cast<size_t>(body->var)].begin(), vars_[static_cast<size_t>(body->var)].end(), block_);
      execute(grid ? *body->body[0] : *body, all);
      forget_copies();
    }
    size_t argument = 0;
    for (size_t i = 0; i < nest_.buffers.size(); ++i) {
      if (nest_.buffers[i].space != Space::Argument) continue;
      const View& v = arguments_[argument++];
      if (!nest_.buffers[i].written || v.initialised || !v.whole) continue;
      for (size_t e = 0; e < buffers_[i].defined.size(); ++e)
        if (!buffers_[i].defined[e])
          report_.find(fmt::format("{} is never written", nest_.buffers[i].name), fmt::format("element {}", e));
    }
    findings_.messages = report_.messages();
    return std::move(findings_);
  }

 private:
  std::string place(int thread) const { return fmt::format("in thread {} of block {}", thread, block_); }
  std::string thread_name(int64_t global) const {
    return global == kSeveral ? "others" : fmt::format("thread {} of block {}", global % threads_, global / threads_);
  }

  // --- what is asked of memory (traffic.h)

  // Which iterations of a loop are run, and how many each stands for: all of them, but where requests are counted a
  // few, from its beginning, its middle and its end.
  struct Followed {
    int64_t count, extent;
    double weight;
    int64_t at(int64_t i) const {
      const int64_t half = count / 2;
      return count == extent || i < half ? i : (extent - 1) * (i - half + 1) / half;
    }
  };
  Followed followed(int64_t extent) const {
    if (!traffic_ || extent <= kFollowed) return {extent, extent, 1};
    return {kFollowed, extent, static_cast<double>(extent) / kFollowed};
  }

  void note(int buffer, bool written, const Threads& active, const Value* index, const Value* guard, int lanes = 1) {
    const Buffer& b = nest_.buffers[static_cast<size_t>(buffer)];
    if (!traffic_ || b.space == Space::Register) return;
    std::vector<int64_t> places;
    for (size_t i = 0; i < active.size(); ++i) {
      const int t = active[i];
      if (!guard || guard[t].i) places.push_back(b.bits ? index[t].i / 8 : index[t].i * size_of(b.dtype));
      if (i + 1 < active.size() && active[i + 1] / kWarp == t / kWarp) continue;
      traffic_->note(buffer, b.space == Space::Shared, written, places, b.bits ? 1 : lanes * size_of(b.dtype), weight_);
      places.clear();
    }
  }

  // --- expressions

  // Each expression has its own bank, so that numbers are written there once.
  const Values& evaluate(const Expr& e, const Threads& active) {
    const Code& code = codes_.of(e);
    std::vector<Values>& bank = banks_[e.get()];
    if (bank.empty()) {
      bank.assign(code.size(), Values(static_cast<size_t>(threads_)));
      for (size_t at = 0; at < code.size(); ++at) {
        const ExprNode& n = *code[at].node;
        if (n.kind == ExprKind::Int) std::fill(bank[at].begin(), bank[at].end(), int_value(n.int_value));
        if (n.kind == ExprKind::Float) std::fill(bank[at].begin(), bank[at].end(), float_value(n.float_value));
      }
    }
    for (size_t at = 0; at < code.size(); ++at) {
      const Instruction& in = code[at];
      const ExprNode& n = *in.node;
      Value* out = bank[at].data();
      auto operand = [&](size_t i) -> const Value* { return bank[static_cast<size_t>(in.operands[i])].data(); };
      switch (n.kind) {
        case ExprKind::Int:
        case ExprKind::Float: break;
        case ExprKind::Var: {
          const std::vector<int64_t>& v = vars_[static_cast<size_t>(n.id)];
          for (int t : active) out[t] = int_value(v[static_cast<size_t>(t)]);
          break;
        }
        case ExprKind::Local: {
          const Values& v = locals_[static_cast<size_t>(n.id)];
          for (int t : active) {
            if (!bound_[static_cast<size_t>(n.id)][static_cast<size_t>(t)])
              report_.find("local " + nest_.locals[static_cast<size_t>(n.id)].name + " read before it is bound",
                           place(t));
            out[t] = v[static_cast<size_t>(t)];
          }
          break;
        }
        case ExprKind::Load: {
          const Value *index = operand(0), *guard = n.args.size() > 1 ? operand(1) : nullptr;
          // where sums live: most loads
          if (!guard && nest_.buffers[static_cast<size_t>(n.id)].space == Space::Register && n.dtype == DType::F32) {
            const BufferState& s = buffers_[static_cast<size_t>(n.id)];
            for (int t : active) {
              const int64_t at = t * s.numel + index[t].i;
              const bool plain =
                  index[t].i >= 0 && index[t].i < s.numel && s.defined[static_cast<size_t>(at)] == block_ + 1;
              out[t] = plain ? float_value(static_cast<double>(reinterpret_cast<const float*>(s.bytes)[at]))
                             : load(n.id, index[t].i, t);
            }
            break;
          }
          note(n.id, false, active, index, guard);
          for (int t : active)
            out[t] =
                guard && !guard[t].i ? (is_float(n.dtype) ? float_value(0) : int_value(0)) : load(n.id, index[t].i, t);
          break;
        }
        case ExprKind::Pair:
        case ExprKind::Dot: throw InternalError("interpret: the nest is a CPU's");
        case ExprKind::Fma: {
          const Value *a = operand(0), *b = operand(1), *c = operand(2);
          for (int t : active) out[t] = fused_multiply_add(n.dtype, a[t], b[t], c[t]);
          break;
        }
        case ExprKind::Apply: apply_all(n, in, active, bank, out); break;
      }
    }
    return bank[code.size() - 1];
  }

  void apply_all(const ExprNode& n, const Instruction& in, const Threads& active, std::vector<Values>& bank,
                 Value* out) {
    const DType from = n.args[0]->dtype;
    const Value* a = bank[static_cast<size_t>(in.operands[0])].data();
    if (from == DType::I64 && n.args.size() == 2) {  // most of all: index arithmetic
      const Value* b = bank[static_cast<size_t>(in.operands[1])].data();
      if (n.op == Op::Add) {
        for (int t : active)
          out[t].i = static_cast<int64_t>(static_cast<uint64_t>(a[t].i) + static_cast<uint64_t>(b[t].i));
        return;
      }
      if (n.op == Op::Mul) {
        for (int t : active)
          out[t].i = static_cast<int64_t>(static_cast<uint64_t>(a[t].i) * static_cast<uint64_t>(b[t].i));
        return;
      }
      if (n.args[1]->kind == ExprKind::Int && n.args[1]->int_value > 0 && (n.op == Op::FloorDiv || n.op == Op::Mod)) {
        const int64_t d = n.args[1]->int_value;
        for (int t : active) {
          const int64_t r = ((a[t].i % d) + d) % d;
          out[t].i = n.op == Op::Mod ? r : (a[t].i - r) / d;
        }
        return;
      }
    }
    Value args[3];
    for (int t : active) {
      for (size_t i = 0; i < n.args.size(); ++i)
        args[i] = bank[static_cast<size_t>(in.operands[i])][static_cast<size_t>(t)];
      out[t] = elementwise(n.op, from, n.dtype, args);
    }
  }

  // --- memory

  bool within(int buffer, int64_t index, const char* access, int thread) {
    const BufferState& s = buffers_[static_cast<size_t>(buffer)];
    if (index >= 0 && index < s.numel) return true;
    report_.find(fmt::format("{} of {} out of bounds", access, nest_.buffers[static_cast<size_t>(buffer)].name),
                 fmt::format("element {} of {} {}", index, s.numel, place(thread)));
    return false;
  }

  void race(int buffer, int64_t index, const char* how, int64_t self, int64_t other) {
    report_.find(fmt::format("race on {}: {}", nest_.buffers[static_cast<size_t>(buffer)].name, how),
                 fmt::format("element {}, {} and {}", index, thread_name(self), thread_name(other)));
  }

  // Another thread's access is in order only if it was this block's, before the last barrier.
  bool unordered(int64_t other, int64_t epoch) const { return epoch == epoch_ || other / threads_ != block_; }

  size_t place_of(int buffer, int64_t index, int thread) const {
    const bool own = nest_.buffers[static_cast<size_t>(buffer)].space == Space::Register;
    return static_cast<size_t>(own ? thread * nest_.buffers[static_cast<size_t>(buffer)].numel + index : index);
  }

  Value load(int buffer, int64_t index, int thread) {
    const Buffer& b = nest_.buffers[static_cast<size_t>(buffer)];
    if (!within(buffer, index, "load", thread)) return is_float(b.dtype) ? float_value(0) : int_value(0);
    BufferState& s = buffers_[static_cast<size_t>(buffer)];
    if (!s.bytes) return is_float(b.dtype) ? float_value(0) : int_value(0);
    const size_t at = place_of(buffer, index, thread);
    if (!s.under_way.empty() && s.under_way[at]) {
      report_.find(fmt::format("read of {} before a copy to it is waited for", b.name),
                   fmt::format("element {} {}", index, place(thread)));
      return interpret::load(s.bytes, static_cast<int64_t>(at), b.dtype);
    }
    if (s.watched && (b.space == Space::Argument ? s.defined[at] == 0 : s.defined[at] != block_ + 1))
      report_.find(fmt::format("read of {} before it is written", b.name),
                   fmt::format("element {} {}", index, place(thread)));
    if (!s.accesses.empty()) {
      Access& a = s.accesses[at];
      const int64_t self = block_ * threads_ + thread;
      if (a.writer != kNobody && a.writer != self && unordered(a.writer, a.write_epoch))
        race(buffer, index, "read and written", self, a.writer);
      a.reader = a.reader == kNobody || a.read_epoch != epoch_ || a.reader == self ? self : kSeveral;
      a.reader_block = a.reader_block == kNobody || a.reader_block == block_ ? block_ : kSeveral;
      a.read_epoch = epoch_;
    }
    if (b.bits) return int_value(s.bytes[at / 8] >> at % 8 & 1);
    return interpret::load(s.bytes, static_cast<int64_t>(at), b.dtype);
  }

  void store(int buffer, int64_t index, Value v, int thread) {
    if (!within(buffer, index, "store", thread)) return;
    BufferState& s = buffers_[static_cast<size_t>(buffer)];
    if (!s.bytes) return;
    const size_t at = place_of(buffer, index, thread);
    if (!s.under_way.empty() && s.under_way[at])
      report_.find(
          fmt::format("write to {} while a copy to it is under way", nest_.buffers[static_cast<size_t>(buffer)].name),
          fmt::format("element {} {}", index, place(thread)));
    if (s.watched) s.defined[at] = block_ + 1;
    if (!s.accesses.empty()) {
      Access& a = s.accesses[at];
      const int64_t self = block_ * threads_ + thread;
      if (a.writer != kNobody && a.writer != self && unordered(a.writer, a.write_epoch))
        race(buffer, index, "written twice", self, a.writer);
      if (a.reader != kNobody && a.reader != self && a.read_epoch == epoch_)
        race(buffer, index, "read and written", self, a.reader);
      else if (a.reader_block != kNobody && a.reader_block != block_ &&
               nest_.buffers[static_cast<size_t>(buffer)].space == Space::Argument)
        race(buffer, index, "read and written", self, a.reader);
      a.writer = self;
      a.write_epoch = epoch_;
    }
    const Buffer& b = nest_.buffers[static_cast<size_t>(buffer)];
    if (!b.bits) return interpret::store(s.bytes, static_cast<int64_t>(at), b.dtype, v);
    const int bit = 1 << at % 8;
    s.bytes[at / 8] = static_cast<uint8_t>(v.i ? s.bytes[at / 8] | bit : s.bytes[at / 8] & ~bit);
  }

  // --- statements

  void execute(const StmtNode& s, const Threads& active) {
    switch (s.kind) {
      case StmtKind::Block:
        for (const Stmt& inner : s.body) execute(*inner, active);
        break;
      case StmtKind::For: loop(s, active); break;
      case StmtKind::Store: {
        const Values& index = evaluate(s.index, active);
        const Values& value = evaluate(s.value, active);
        note(s.buffer, true, active, index.data(), nullptr);
        for (int t : active) store(s.buffer, index[static_cast<size_t>(t)].i, value[static_cast<size_t>(t)], t);
        break;
      }
      case StmtKind::Let: {
        const Values& value = evaluate(s.value, active);
        for (int t : active) {
          locals_[static_cast<size_t>(s.local)][static_cast<size_t>(t)] = value[static_cast<size_t>(t)];
          bound_[static_cast<size_t>(s.local)][static_cast<size_t>(t)] = 1;
        }
        break;
      }
      case StmtKind::Reduce: {
        const Values& value = evaluate(s.value, active);
        const DType d = nest_.locals[static_cast<size_t>(s.local)].dtype;
        Values& into = locals_[static_cast<size_t>(s.local)];
        for (int t : active)
          into[static_cast<size_t>(t)] =
              combine(s.combine, d, into[static_cast<size_t>(t)], value[static_cast<size_t>(t)]);
        break;
      }
      case StmtKind::Check: {
        const Values& ok = evaluate(s.value, active);
        for (int t : active)
          if (!ok[static_cast<size_t>(t)].i)
            findings_.status = std::max(findings_.status, static_cast<uint32_t>(s.code));
        break;
      }
      case StmtKind::Barrier:
        if (static_cast<int>(active.size()) != threads_)
          report_.find("a barrier that not all threads reach",
                       fmt::format("{} of {} in block {}", active.size(), threads_, block_));
        ++epoch_;
        break;
      case StmtKind::Prefetch:
      case StmtKind::Transpose:
      case StmtKind::TileZero:
      case StmtKind::TileLoad:
      case StmtKind::TileDot:
      case StmtKind::TileStore: throw InternalError("interpret: the nest is a CPU's");
      case StmtKind::WarpReduce: warp_reduce(s, active); break;
      case StmtKind::Mma: mma(s, active); break;
      case StmtKind::Copy: copy(s, active); break;
      case StmtKind::CopyAsync: copy_async(s, active); break;
      case StmtKind::CommitCopies:
        for (int t : active) {
          CopyGroups& c = copies_[static_cast<size_t>(t)];
          c.committed.push_back(std::move(c.open));
          c.open.clear();
        }
        break;
      case StmtKind::WaitCopies:
        for (int t : active) wait_copies(t, static_cast<size_t>(s.code));
        break;
      case StmtKind::LoadMatrix: load_matrix(s, active); break;
    }
  }

  void loop(const StmtNode& s, const Threads& active) {
    const Values& evaluated = evaluate(s.extent, active);
    std::vector<int64_t> extents;
    for (int t : active) extents.push_back(evaluated[static_cast<size_t>(t)].i);
    const int64_t most = extents.empty() ? 0 : *std::max_element(extents.begin(), extents.end());
    const bool same = extents.empty() || *std::min_element(extents.begin(), extents.end()) == most;
    std::vector<int64_t>& var = vars_[static_cast<size_t>(s.var)];
    if (s.loop == LoopKind::Thread) {
      if (!same) report_.find("a Thread loop whose extent differs between threads", fmt::format("in block {}", block_));
      if (static_cast<int>(active.size()) != threads_)
        report_.find("a Thread loop that not all threads reach", fmt::format("in block {}", block_));
      Threads some;
      const double around = weight_;
      const Followed turns = followed(ceil_div(most, threads_));
      weight_ = around * turns.weight;
      for (int64_t turn = 0; turn < turns.count; ++turn) {
        const int64_t first = turns.at(turn) * threads_;
        some.clear();
        for (int t : active)
          if (first + t < most) some.push_back(t), var[static_cast<size_t>(t)] = first + t;
        execute(*s.body[0], some);
      }
      weight_ = around;
      return;
    }
    const double around = weight_;
    const Followed iterations = followed(most);
    weight_ = around * iterations.weight;
    for (int64_t n = 0; n < iterations.count; ++n) {
      const int64_t i = iterations.at(n);
      if (same) {
        for (int t : active) var[static_cast<size_t>(t)] = i;
        execute(*s.body[0], active);
        continue;
      }
      Threads some;
      for (size_t k = 0; k < active.size(); ++k)
        if (i < extents[k]) some.push_back(active[k]), var[static_cast<size_t>(active[k])] = i;
      execute(*s.body[0], some);
    }
    weight_ = around;
  }

  // Whether all of the warp's threads are among the active ones; a finding otherwise.
  bool together(int warp, const Threads& active, const char* what) {
    const auto from = std::lower_bound(active.begin(), active.end(), warp * kWarp),
               to = std::lower_bound(active.begin(), active.end(), (warp + 1) * kWarp);
    if (to - from == kWarp) return true;
    if (to != from)
      report_.find(fmt::format("{} that not all threads of a warp reach", what),
                   fmt::format("{} of warp {} in block {}", to - from, warp, block_));
    return false;
  }

  void warp_reduce(const StmtNode& s, const Threads& active) {
    const DType d = nest_.locals[static_cast<size_t>(s.local)].dtype;
    Value* v = locals_[static_cast<size_t>(s.local)].data();
    for (int warp = 0; warp < threads_ / kWarp; ++warp) {
      if (!together(warp, active, "a WarpReduce")) continue;
      Value* lane = v + warp * kWarp;
      for (int apart = kWarp / 2; apart >= 1; apart /= 2) {
        Value next[kWarp];
        for (int l = 0; l < kWarp; ++l) next[l] = combine(s.combine, d, lane[l], lane[l ^ apart]);
        std::copy(next, next + kWarp, lane);
      }
    }
  }

  void check_begins(int buffer, int64_t at, int64_t multiple, std::string_view what, int thread) {
    if (at % multiple != 0)
      report_.find(
          fmt::format("{} of {} that begins at no multiple", what, nest_.buffers[static_cast<size_t>(buffer)].name),
          fmt::format("element {} {}", at, place(thread)));
  }

  void copy(const StmtNode& s, const Threads& active) {
    const bool reads = nest_.buffers[static_cast<size_t>(s.buffer)].space == Space::Register;
    const int memory = reads ? s.source : s.buffer;
    const Values &to = evaluate(s.index, active), &from = evaluate(s.value, active);
    const Value* at = reads ? from.data() : to.data();
    note(memory, !reads, active, at, nullptr, s.lanes);
    for (int t : active) {
      check_begins(memory, at[t].i, s.lanes, fmt::format("a copy of {} elements", s.lanes), t);
      int64_t lanes = s.lanes;
      if (const BufferState& b = buffers_[static_cast<size_t>(memory)];
          nest_.buffers[static_cast<size_t>(memory)].bits && at[t].i >= 0 && at[t].i < b.numel) {
        lanes = std::min(lanes, b.numel - at[t].i);  // the last byte may have no more elements
        if (!reads && b.bytes) b.bytes[at[t].i / 8] = 0;
      }
      for (int i = 0; i < lanes; ++i)
        store(s.buffer, to[static_cast<size_t>(t)].i + i, load(s.source, from[static_cast<size_t>(t)].i + i, t), t);
    }
  }

  // The bytes are stored at once; until they are waited for, whoever touches them is told of.
  void copy_async(const StmtNode& s, const Threads& active) {
    const Values &to = evaluate(s.index, active), &from = evaluate(s.value, active);
    const Value* guard = s.second ? evaluate(s.second, active).data() : nullptr;
    note(s.source, false, active, from.data(), guard, s.lanes);
    note(s.buffer, true, active, to.data(), nullptr, s.lanes);
    BufferState& memory = buffers_[static_cast<size_t>(s.buffer)];
    for (int t : active) {
      const size_t thread = static_cast<size_t>(t);
      const bool reads = !guard || guard[t].i;
      for (const auto& [buffer, at] : {std::pair{s.buffer, to[thread].i}, {s.source, reads ? from[thread].i : 0}})
        check_begins(buffer, at, s.lanes, fmt::format("a copy of {} elements", s.lanes), t);
      const bool real = is_float(nest_.buffers[static_cast<size_t>(s.source)].dtype);
      for (int i = 0; i < s.lanes; ++i) {
        const int64_t at = to[thread].i + i;
        store(s.buffer, at, reads ? load(s.source, from[thread].i + i, t) : real ? float_value(0) : int_value(0), t);
        if (at < 0 || at >= memory.numel) continue;
        memory.under_way[static_cast<size_t>(at)] = 1;
        copies_[thread].open.emplace_back(s.buffer, at);
      }
    }
  }

  // What has arrived was written now, by the thread that waited: other threads see it behind a barrier.
  void wait_copies(int thread, size_t groups) {
    std::deque<CopyGroups::Group>& committed = copies_[static_cast<size_t>(thread)].committed;
    for (; committed.size() > groups; committed.pop_front())
      for (const auto& [buffer, at] : committed.front()) {
        BufferState& s = buffers_[static_cast<size_t>(buffer)];
        s.under_way[static_cast<size_t>(at)] = 0;
        s.accesses[static_cast<size_t>(at)].writer = block_ * threads_ + thread;
        s.accesses[static_cast<size_t>(at)].write_epoch = epoch_;
      }
  }

  void forget_copies() {
    for (int t = 0; t < threads_; ++t) {
      CopyGroups& c = copies_[static_cast<size_t>(t)];
      for (const CopyGroups::Group& g : c.committed) c.open.insert(c.open.end(), g.begin(), g.end());
      for (const auto& [buffer, at] : c.open) {
        report_.find(
            fmt::format("a copy to {} that is never waited for", nest_.buffers[static_cast<size_t>(buffer)].name),
            fmt::format("element {} {}", at, place(t)));
        buffers_[static_cast<size_t>(buffer)].under_way[static_cast<size_t>(at)] = 0;
      }
      c = {};
    }
  }

  void load_matrix(const StmtNode& s, const Threads& active) {
    const DType dtype = nest_.buffers[static_cast<size_t>(s.source)].dtype;
    const int width = static_cast<int>(kCopyBytes / size_of(dtype));  // elements of a row
    const int held = width / 4;                                       // of each matrix, by a thread
    const Values &to = evaluate(s.index, active), &from = evaluate(s.value, active);
    for (int warp = 0; warp < threads_ / kWarp; ++warp) {
      if (!together(warp, active, "a LoadMatrix")) continue;
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        const size_t first = static_cast<size_t>(warp * kWarp + matrix * kMatrixRows);
        Threads rows;
        for (int r = 0; r < kMatrixRows; ++r) rows.push_back(static_cast<int>(first) + r);
        note(s.source, false, rows, from.data(), nullptr, width);
        for (int r : rows) check_begins(s.source, from[static_cast<size_t>(r)].i, width, "a matrix's row", r);
        for (int l = 0; l < kWarp; ++l)
          for (int i = 0; i < held; ++i) {
            const int column = l % 4 * held + i, row = l / 4, t = warp * kWarp + l;
            const int64_t at = s.transposed ? from[first + static_cast<size_t>(column)].i + row
                                            : from[first + static_cast<size_t>(row)].i + column;
            store(s.buffer, to[static_cast<size_t>(t)].i + matrix * held + i, load(s.source, at, t), t);
          }
      }
    }
  }

  void mma(const StmtNode& s, const Threads& active) {
    const DType d = s.value->dtype;
    const int k = mma_k(d);
    auto start = [&](const Expr& index) {
      const Values& v = evaluate(index, active);
      std::vector<int64_t> starts(static_cast<size_t>(threads_), 0);
      for (int t : active) starts[static_cast<size_t>(t)] = v[static_cast<size_t>(t)].i;
      return starts;
    };
    const auto sums_at = start(s.index), a_at = start(s.value->args[0]), b_at = start(s.second->args[0]);
    for (int warp = 0; warp < threads_ / kWarp; ++warp) {
      if (!together(warp, active, "an Mma")) continue;
      double a[kMmaM][16] = {}, b[kMmaN][16] = {};
      for (int l = 0; l < kWarp; ++l) {
        const int t = warp * kWarp + l;
        const size_t at = static_cast<size_t>(t);
        auto fetch = [&](int buffer, int64_t index) {
          const double v = load(buffer, index, t).f;
          return d == DType::F32 ? static_cast<double>(tf32(v)) : v;
        };
        for (int i = 0; i < mma_a_count(d); ++i) {
          const MmaElement p = mma_a_place(d, i);
          a[l / 4 + p.row][l % 4 * p.step + p.column] = fetch(s.value->id, a_at[at] + i);
        }
        for (int i = 0; i < mma_b_count(d); ++i) {
          const MmaElement p = mma_b_place(d, i);
          b[l / 4 + p.row][l % 4 * p.step + p.column] = fetch(s.second->id, b_at[at] + i);
        }
      }
      for (int l = 0; l < kWarp; ++l) {
        const int t = warp * kWarp + l;
        for (int i = 0; i < kMmaSums; ++i) {
          const MmaElement p = mma_sum_place(i);
          const int64_t index = sums_at[static_cast<size_t>(t)] + i;
          double sum = load(s.buffer, index, t).f;
          for (int x = 0; x < k; ++x) sum += a[l / 4 + p.row][x] * b[l % 4 * p.step + p.column][x];
          store(s.buffer, index, float_value(static_cast<double>(static_cast<float>(sum))), t);
        }
      }
    }
  }

  const LoopNest& nest_;
  const int threads_;
  const std::vector<View>& arguments_;
  Findings findings_;
  Report report_;
  std::vector<BufferState> buffers_;
  std::vector<std::vector<int64_t>> vars_;
  std::vector<Values> locals_;
  std::vector<std::vector<char>> bound_;
  std::vector<CopyGroups> copies_;  // by thread
  CodeCache codes_;
  std::unordered_map<const ExprNode*, std::vector<Values>> banks_;  // a row of values an instruction
  int64_t block_ = 0, epoch_ = 0;
  TrafficCount* const traffic_;  // none: everything runs, nothing is counted
  double weight_ = 1;            // how many iterations of all loops around this one stands for
};

}  // namespace

Findings run_on_device(const LoopNest& nest, const std::vector<View>& arguments, int64_t parallel_extent) {
  require(nest.body != nullptr, "interpret: a nest without a body");
  return Device(nest, arguments).run(parallel_extent);
}

Findings run_on_device(const LoopNest& nest, std::vector<Memory>& arguments, int64_t parallel_extent) {
  std::vector<View> views;
  for (Memory& m : arguments)
    views.push_back({m.bytes.data(), static_cast<int64_t>(m.bytes.size()), m.initialised, true});
  return run_on_device(nest, views, parallel_extent);
}

std::vector<Traffic> traffic_of(const LoopNest& nest) {
  require(nest.body != nullptr && nest.threads > 0, "traffic: a nest without a body, or for a CPU");
  std::vector<View> nothing;
  std::vector<std::string> names;
  for (const Buffer& b : nest.buffers) {
    names.push_back(b.name);
    const int64_t numel = b.numel != 0 ? b.numel : int64_t{1} << 40;
    const int64_t bytes = b.bits ? bytes_of_bits(numel) : numel * size_of(b.dtype);
    if (b.space == Space::Argument) nothing.push_back({nullptr, bytes, true, false});
  }
  TrafficCount count;
  Device(nest, nothing, &count).run(nest.parallel_extent);
  return count.all(names);
}

}  // namespace trainc::interpret
