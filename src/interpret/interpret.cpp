// Expressions are flattened once: their nodes in order, each evaluated once a statement, all lanes at a time. All
// operands are evaluated, as the emitted code does: a Select touches both sides' memory; only a Load's guard keeps it
// from memory.
#include "interpret/interpret.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "interpret/code.h"
#include "interpret/device.h"
#include "interpret/report.h"
#include "interpret/value.h"
#include "loop/runs.h"

namespace trainc::interpret {
namespace {

using namespace loop;

constexpr int kLanes = 64;
using Lanes = std::array<Value, kLanes>;

// Which parallel iteration touched an element; also kNobody, kSeveral, and kOutside for the code around the parallel
// loop.
constexpr int64_t kNobody = -1, kSeveral = -2, kOutside = -3;

struct BufferState {
  std::vector<uint8_t> own;  // Scratch, Register
  uint8_t* bytes = nullptr;
  int64_t numel = 0;
  bool watched = false;  // elements must be written before they are read
  // watched: the iteration that wrote the element (scratch does not outlive an iteration)
  std::vector<int64_t> definer;
  std::vector<int64_t> writer, reader;  // arguments that are written: for races
};

struct LocalState {
  Lanes value{};
  bool bound = false, lanes = false;  // lanes: bound inside the Vector loop, one value a lane
};

class Interpreter {
 public:
  Interpreter(const LoopNest& nest, std::vector<Memory>& arguments) : nest_(nest), arguments_(arguments) {
    size_t argument = 0;
    for (const Buffer& b : nest.buffers) {
      BufferState s;
      if (b.space == Space::Argument) {
        require(argument < arguments.size(), "interpret: fewer arguments than the nest has");
        Memory& m = arguments[argument++];
        s.bytes = m.bytes.data();
        s.numel = b.bits ? bits_in(b.numel, static_cast<int64_t>(m.bytes.size()))
                         : static_cast<int64_t>(m.bytes.size()) / size_of(b.dtype);
        s.watched = !m.initialised;
        if (b.written) s.writer.assign(static_cast<size_t>(s.numel), kNobody), s.reader = s.writer;
      } else {
        s.numel = b.numel;
        s.watched = true;
        s.own.assign(static_cast<size_t>(b.numel * size_of(b.dtype)), 0xff);
        s.bytes = s.own.data();
      }
      if (s.watched) s.definer.assign(static_cast<size_t>(s.numel), kNobody);
      buffers_.push_back(std::move(s));
    }
    for (BufferState& s : buffers_)
      if (!s.own.empty()) s.bytes = s.own.data();
    require(argument == arguments.size(), "interpret: more arguments than the nest has");
    locals_.resize(nest.locals.size());
    vars_.resize(nest.vars.size(), 0);
  }

  Findings run() {
    for (size_t i = 0, argument = 0; i < nest_.buffers.size(); ++i) {
      const Buffer& b = nest_.buffers[i];
      if (b.space != Space::Argument) continue;
      const BufferState& s = buffers_[i];
      if (b.numel != 0 && s.numel != b.numel)
        find(fmt::format("argument {} is given {} elements, the nest says {}", b.name, s.numel, b.numel), "");
      ++argument;
    }
    if (nest_.body) execute(*nest_.body);
    for (size_t i = 0; i < nest_.buffers.size(); ++i)
      if (nest_.buffers[i].space == Space::Argument && nest_.buffers[i].written && buffers_[i].watched)
        for (size_t e = 0; e < buffers_[i].definer.size(); ++e)
          if (buffers_[i].definer[e] == kNobody)
            find(fmt::format("{} is never written", nest_.buffers[i].name), fmt::format("element {}", e));
    findings_.messages = report_.messages();
    return std::move(findings_);
  }

 private:
  void find(std::string what, const std::string& where) { report_.find(std::move(what), where); }
  std::string place() const { return iteration_ >= 0 ? fmt::format("in parallel iteration {}", iteration_) : ""; }

  // --- expressions

  // Values of `e` in the active lanes; kept until the next evaluation into the same bank.
  const Lanes& evaluate(const Expr& e, std::vector<Lanes>& bank) {
    const Code& code = codes_.of(e);
    if (bank.size() < code.size()) bank.resize(code.size());
    for (size_t at = 0; at < code.size(); ++at) {
      const Instruction& in = code[at];
      const ExprNode& n = *in.node;
      Lanes& out = bank[at];
      auto operand = [&](size_t i) -> const Lanes& { return bank[static_cast<size_t>(in.operands[i])]; };
      switch (n.kind) {
        case ExprKind::Int: std::fill_n(out.begin(), active_, int_value(n.int_value)); break;
        case ExprKind::Float: std::fill_n(out.begin(), active_, float_value(n.float_value)); break;
        case ExprKind::Var: {
          const int64_t step = n.id == vector_var_ ? 1 : 0;
          for (int l = 0; l < active_; ++l) out[l] = int_value(vars_[static_cast<size_t>(n.id)] + l * step);
          break;
        }
        case ExprKind::Local: {
          const LocalState& local = locals_.at(static_cast<size_t>(n.id));
          require(local.bound,
                  "interpret: local " + nest_.locals[static_cast<size_t>(n.id)].name + " read before it is bound");
          for (int l = 0; l < active_; ++l) out[l] = local.value[local.lanes ? l : 0];
          break;
        }
        case ExprKind::Load:
          for (int l = 0; l < active_; ++l)
            out[l] = n.args.size() > 1 && !operand(1)[l].i ? (is_float(n.dtype) ? float_value(0) : int_value(0))
                                                           : load(n.id, operand(0)[l].i);
          break;
        case ExprKind::Fma:
          for (int l = 0; l < active_; ++l)
            out[l] = fused_multiply_add(n.dtype, operand(0)[l], operand(1)[l], operand(2)[l]);
          break;
        case ExprKind::Pair:
          for (int l = 0; l < active_; ++l) out[l] = pair_of(operand(0)[l], operand(1)[l]);
          break;
        case ExprKind::Dot:
          for (int l = 0; l < active_; ++l) out[l] = dot(operand(0)[l], operand(1)[l], operand(2)[l]);
          break;
        case ExprKind::Apply: {
          Value args[3];
          for (int l = 0; l < active_; ++l) {
            for (size_t i = 0; i < n.args.size(); ++i) args[i] = operand(i)[l];
            out[l] = elementwise(n.op, n.args[0]->dtype, n.dtype, args);
          }
          break;
        }
      }
    }
    return bank[code.size() - 1];
  }

  // A number that is the same in all lanes.
  int64_t evaluate_extent(const Expr& e) {
    const Lanes& v = evaluate(e, values_);
    for (int l = 1; l < active_; ++l)
      if (v[l].i != v[0].i) find("a loop's extent differs between lanes", place());
    return v[0].i;
  }

  // --- memory

  bool within(int buffer, int64_t index, const char* access) {
    const BufferState& s = buffers_[static_cast<size_t>(buffer)];
    if (index >= 0 && index < s.numel) return true;
    find(fmt::format("{} of {} out of bounds", access, nest_.buffers[static_cast<size_t>(buffer)].name),
         fmt::format("element {} of {} {}", index, s.numel, place()));
    return false;
  }

  void race(int buffer, int64_t index, const char* how, int64_t other) {
    find(fmt::format("race on {}: {}", nest_.buffers[static_cast<size_t>(buffer)].name, how),
         fmt::format("element {}, iteration {} and {}", index, iteration_,
                     other == kSeveral   ? "others"
                     : other == kOutside ? "the code around"
                                         : fmt::format("{}", other)));
  }

  Value load(int buffer, int64_t index) {
    const DType d = nest_.buffers[static_cast<size_t>(buffer)].dtype;
    if (!within(buffer, index, "load")) return is_float(d) ? float_value(0) : int_value(0);
    BufferState& s = buffers_[static_cast<size_t>(buffer)];
    const size_t at = static_cast<size_t>(index);
    if (s.watched && s.definer[at] != iteration_ && s.definer[at] != kOutside)
      find(fmt::format("read of {} before it is written", nest_.buffers[static_cast<size_t>(buffer)].name),
           fmt::format("element {} {}", index, place()));
    if (!s.writer.empty()) {
      if (s.writer[at] != kNobody && s.writer[at] != iteration_) race(buffer, index, "read and written", s.writer[at]);
      s.reader[at] = s.reader[at] == kNobody || s.reader[at] == iteration_ ? iteration_ : kSeveral;
    }
    if (nest_.buffers[static_cast<size_t>(buffer)].bits) return int_value(s.bytes[at / 8] >> at % 8 & 1);
    return interpret::load(s.bytes, index, d);
  }

  void store(int buffer, int64_t index, Value v) {
    if (!within(buffer, index, "store")) return;
    BufferState& s = buffers_[static_cast<size_t>(buffer)];
    const size_t at = static_cast<size_t>(index);
    if (s.watched) s.definer[at] = iteration_;
    if (!s.writer.empty()) {
      if (s.writer[at] != kNobody && s.writer[at] != iteration_) race(buffer, index, "written twice", s.writer[at]);
      if (s.reader[at] != kNobody && s.reader[at] != iteration_) race(buffer, index, "read and written", s.reader[at]);
      s.writer[at] = iteration_;
    }
    interpret::store(s.bytes, index, nest_.buffers[static_cast<size_t>(buffer)].dtype, v);
  }

  // --- statements

  void execute(const StmtNode& s) {
    switch (s.kind) {
      case StmtKind::Block:
        for (const Stmt& inner : s.body) execute(*inner);
        break;
      case StmtKind::For: loop(s); break;
      case StmtKind::Store: {
        const Lanes& index = evaluate(s.index, indices_);
        const Lanes& value = evaluate(s.value, values_);
        for (int l = 0; l < active_; ++l) store(s.buffer, index[l].i, value[l]);
        break;
      }
      case StmtKind::Let: {
        const Lanes& value = evaluate(s.value, values_);
        LocalState& local = locals_.at(static_cast<size_t>(s.local));
        std::copy_n(value.begin(), active_, local.value.begin());
        local.bound = true;
        local.lanes = vector_var_ >= 0;
        break;
      }
      case StmtKind::Reduce: {
        const Lanes& value = evaluate(s.value, values_);
        LocalState& local = locals_.at(static_cast<size_t>(s.local));
        require(local.bound, "interpret: reduce into a local that is not bound");
        const DType d = nest_.locals[static_cast<size_t>(s.local)].dtype;
        const bool partial = vector_var_ >= 0 && !local.lanes;
        Lanes& into = partial ? partials_.at(s.local).levels[0] : local.value;
        for (int l = 0; l < active_; ++l) into[l] = combine(s.combine, partial ? s.value->dtype : d, into[l], value[l]);
        break;
      }
      case StmtKind::Check: {
        const Lanes& ok = evaluate(s.value, values_);
        for (int l = 0; l < active_; ++l)
          if (!ok[l].i) findings_.status = std::max(findings_.status, static_cast<uint32_t>(s.code));
        break;
      }
      case StmtKind::Transpose: {
        const int64_t to = evaluate(s.index, indices_)[0].i, from = evaluate(s.value, values_)[0].i;
        const bool pairs =
            nest_.buffers[static_cast<size_t>(s.buffer)].dtype != nest_.buffers[static_cast<size_t>(s.source)].dtype;
        for (int64_t i = 0; i < s.lanes; ++i)
          for (int64_t j = 0; j < s.lanes; ++j) {
            const int64_t at = from + j * s.source_pitch + (pairs ? 2 * i : i);
            store(s.buffer, to + i * s.pitch + j,
                  pairs ? pair_of(load(s.source, at), load(s.source, at + 1)) : load(s.source, at));
          }
        break;
      }
      case StmtKind::TileZero:
        for (int64_t at = 0; at < kTileSide * kTileSide; ++at)
          store(s.buffer, at, is_float(tile_dtype(s.buffer)) ? float_value(0) : int_value(0));
        break;
      case StmtKind::TileLoad: {
        const int64_t from = evaluate(s.value, values_)[0].i;
        const bool pairs = tile_dtype(s.buffer) != nest_.buffers[static_cast<size_t>(s.source)].dtype;
        for (int64_t i = 0; i < kTileSide; ++i)
          for (int64_t j = 0; j < kTileSide; ++j) {
            const int64_t at = from + i * s.source_pitch + (pairs ? 2 * j : j);
            store(s.buffer, i * kTileSide + j,
                  pairs ? pair_of(load(s.source, at), load(s.source, at + 1)) : load(s.source, at));
          }
        break;
      }
      case StmtKind::TileStore: {
        const int64_t to = evaluate(s.index, indices_)[0].i;
        for (int64_t i = 0; i < kTileSide; ++i)
          for (int64_t j = 0; j < kTileSide; ++j)
            store(s.buffer, to + i * s.pitch + j, load(s.source, i * kTileSide + j));
        break;
      }
      case StmtKind::TileDot: {
        // tiles are written whole: one element tells whether they were
        for (int tile : {s.buffer, s.source, s.other}) load(tile, 0);
        const auto words = [&](int tile) { return buffers_[static_cast<size_t>(tile)].bytes; };
        tile_dot(words(s.buffer), words(s.source), words(s.other));
        break;
      }
      case StmtKind::Prefetch: evaluate(s.index, indices_); break;  // what the index itself reads is checked
      case StmtKind::Barrier:
      case StmtKind::WarpReduce:
      case StmtKind::Mma:
      case StmtKind::Copy:
      case StmtKind::CopyAsync:
      case StmtKind::CommitCopies:
      case StmtKind::WaitCopies:
      case StmtKind::LoadMatrix: throw InternalError("interpret: a statement of a device");
    }
  }

  DType tile_dtype(int tile) const { return nest_.buffers[static_cast<size_t>(tile)].dtype; }

  void loop(const StmtNode& s) {
    if (s.loop == LoopKind::Vector) return vector_loop(s);
    const bool parallel = s.loop == LoopKind::Parallel;
    const int64_t extent = parallel ? nest_.parallel_extent : evaluate_extent(s.extent);
    for (int64_t i = 0; i < extent; ++i) {
      if (parallel) iteration_ = i;
      vars_[static_cast<size_t>(s.var)] = i;
      execute(*s.body[0]);
    }
    if (parallel) iteration_ = kOutside;
  }

  // Of each lane: a run of terms, then longer and longer ones; the last is the total. One level alone where no float is
  // summed up.
  struct Partial {
    ReduceKind kind;
    DType terms, total;
    std::vector<Lanes> levels;
  };

  void vector_loop(const StmtNode& s) {
    require(vector_var_ < 0, "interpret: a Vector loop inside a Vector loop");
    const int64_t extent = evaluate_extent(s.extent);
    start_partials(*s.body[0]);
    vector_var_ = s.var;
    int64_t vectors = 0;
    for (int64_t i = 0; i < extent; i += s.lanes) {
      active_ = static_cast<int>(std::min<int64_t>(s.lanes, extent - i));
      if (active_ < s.lanes) end_runs(kLevels);
      vars_[static_cast<size_t>(s.var)] = i;
      execute(*s.body[0]);
      ++vectors;
      size_t level = 0;
      while (level < kLevels && vectors % run_of(level + 1) == 0) ++level;
      end_runs(level);
    }
    end_runs(kLevels);
    vector_var_ = -1;
    active_ = 1;
    for (auto& [id, partial] : partials_) {
      Lanes& total = partial.levels.back();
      for (int half = s.lanes / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; ++l) total[l] = combine(partial.kind, partial.total, total[l], total[l + half]);
      Value& v = locals_[static_cast<size_t>(id)].value[0];
      v = combine(partial.kind, partial.total, v, total[0]);
    }
    partials_.clear();
    for (LocalState& local : locals_)
      if (local.lanes) local.bound = local.lanes = false;  // bound in the loop, out of scope after it
  }

  // What the levels below `level` hold goes up to it; they begin anew.
  void end_runs(size_t level) {
    for (auto& [id, p] : partials_)
      for (size_t k = 1; k <= level && k < p.levels.size(); ++k) {
        for (int l = 0; l < kLanes; ++l) p.levels[k][l] = combine(p.kind, p.total, p.levels[k][l], p.levels[k - 1][l]);
        p.levels[k - 1].fill(neutral(p.kind, p.terms));
      }
  }

  // A partial result a lane for each local that the loop reduces into and does not bind.
  void start_partials(const StmtNode& s) {
    if (s.kind == StmtKind::Let) inner_.push_back(s.local);
    if (s.kind == StmtKind::Reduce && std::find(inner_.begin(), inner_.end(), s.local) == inner_.end()) {
      const DType d = nest_.locals.at(static_cast<size_t>(s.local)).dtype, terms = s.value->dtype;
      const auto [at, made] = partials_.try_emplace(s.local);
      if (made) {
        at->second = {s.combine, terms, d, {}};
        for (size_t k = 0; k < levels_of(s.combine, terms, d); ++k)
          at->second.levels.emplace_back().fill(neutral(s.combine, k == 0 ? terms : d));
      }
      require(at->second.kind == s.combine && at->second.terms == terms, "interpret: one local reduced in two ways");
    }
    for (const Stmt& inner : s.body) start_partials(*inner);
    if (s.kind == StmtKind::For && s.loop == LoopKind::Vector) inner_.clear();
  }

  const LoopNest& nest_;
  std::vector<Memory>& arguments_;
  Findings findings_;
  Report report_;
  std::vector<BufferState> buffers_;
  std::vector<LocalState> locals_;
  std::vector<int64_t> vars_;
  CodeCache codes_;
  std::vector<Lanes> values_, indices_;  // banks
  std::map<int, Partial> partials_;
  std::vector<int> inner_;  // locals bound inside the Vector loop that starts
  int vector_var_ = -1, active_ = 1;
  int64_t iteration_ = kOutside;
};

}  // namespace

Findings run(const LoopNest& nest, std::vector<Memory>& arguments, int64_t parallel_extent) {
  if (nest.threads > 0)
    return run_on_device(nest, arguments, parallel_extent < 0 ? nest.parallel_extent : parallel_extent);
  require(parallel_extent < 0, "interpret: a CPU nest runs over its own parallel extent");
  return Interpreter(nest, arguments).run();
}

}  // namespace trainc::interpret
