// What is checked, in this order:
//   counts    none is negative, or larger than any memory: what is computed from them below cannot overflow
//   buffers   shape and strides agree, nothing negative; `bytes` hold the farthest element; Input and Output indices
//             within the counts, bits only of dense bools in Temp and Saved, one Output buffer an index, one Input
//             buffer an index that is `updated`; Saved, Temp and Constant offsets aligned and within their memory
//   steps     buffer and kernel numbers in range; a kernel's entry lies within its code; declared effects are the
//             arguments; `over`: a temporary, or a slot that the plan writes, over a temporary, or over a slot that the
//             plan overwrites, with its bytes and offset; the kernel that first writes the one is the last reader of
//             the other Constants are never written, an Input only where it is `updated`: by one step, after which
//             nobody reads it; what is read was written before (Saved: where this plan writes it at all); an Extern
//             step's `aliases` are arguments of it; while a view lives, no step writes the memory that it may lie in
//             an Output over an Input: of its bytes, one for each that is not `updated` and no output itself; no step
//             that follows the one which first writes it reads that input, and that one does only if it is a kernel
//             bits are written by Random steps alone, and read by kernels alone
//             a Random step writes one dense bool buffer (or, on the host, none) with 0 <= p <= 1; with a kernel, it
//             reads one Draw buffer, which no other step does
//             a Product's matrices lie within their buffers, and are laid out as plan.h says; so do what it adds and
//             sums; these have one batch, no bias, and an operand as plan.h says
//             a Start has a token of its own, from 0 on, and is waited for once, behind it, by a Wait with its effects
//             and no arguments; its effects are its arguments. Between the two nobody writes what it reads, nor touches
//             what it writes; that is the framework's memory or bits never
//             a guarded step is a kernel; its guard is one bool in a byte of its own, which it reads and does not
//             write; what it is the first to write is a temporary, or over another buffer: where it is passed over,
//             nobody outside the plan gets what was never written
//             all kernels run in blocks of threads, on a device alone, or none does; those that do take no shifts
//   outputs   one entry an output; it names its own Output buffer, an Input, or none; an Output buffer is written and
//             is an output
//   remarks   each says what was refused and why, at least once, of two lines at most; they are no more than a compiler
//             makes
//   memory    Temp buffers that live at the same time, and Saved ones, share no byte (live.h says when they live),
//             unless one is over the other
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "plan/live.h"
#include "plan/plan.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 56, kMostInputs = 1 << 24;

class Verifier {
 public:
  explicit Verifier(const Plan& plan)
      : p_(plan),
        written_(plan.buffers.size(), false),
        read_in_flight_(plan.buffers.size()),
        written_in_flight_(plan.buffers.size(), -1) {}
  void run() {
    check(p_.input_count >= 0 && p_.input_count <= kMostInputs && p_.output_count >= 0, "{} inputs, {} outputs",
          p_.input_count, p_.output_count);
    check(is_size(p_.temp_bytes) && is_size(p_.saved_bytes), "{} bytes of its own, {} of the handle", p_.temp_bytes,
          p_.saved_bytes);
    for (const Buffer& b : p_.buffers) buffer(b);
    for (const Buffer& b : p_.buffers)
      if (b.space == MemorySpace::Input && b.updated)
        check(inputs_.count(b.index) == 1, "buffer {}: a second buffer for updated input {}", b.name, b.index);
    for (const Kernel& k : p_.kernels) kernel(k);
    for (const Step& s : p_.steps)
      for (int b : s.writes) in_range(s, b), written_here_.insert(b);
    starts_ = std::count_if(p_.steps.begin(), p_.steps.end(), [](const Step& s) { return s.kind == StepKind::Start; });
    for (const Step& s : p_.steps) step(s);
    for (const auto& [token, start] : in_flight_) check(false, "step {}: is waited for by nobody", start->name);
    outputs();
    remarks();
    memory();
  }

 private:
  template <class... A> void check(bool ok, fmt::format_string<A...> text, A&&... args) const {
    if (!ok) throw InternalError(fmt::format("plan {}: {}", p_.name, fmt::format(text, std::forward<A>(args)...)));
  }

  static bool is_size(int64_t n) { return n >= 0 && n <= kMostBytes; }

  void buffer(const Buffer& b) {
    check(b.shape.size() == b.strides.size(), "buffer {}: {} axes but {} strides", b.name, b.shape.size(),
          b.strides.size());
    check(is_size(b.bytes), "buffer {}: {} bytes", b.name, b.bytes);
    int64_t last = 0, numel = std::count(b.shape.begin(), b.shape.end(), 0) ? 0 : 1;  // index of the farthest element
    for (size_t i = 0; i < b.shape.size(); ++i) {
      check(b.shape[i] >= 0 && b.strides[i] >= 0, "buffer {}: negative extent or stride", b.name);
      if (numel == 0) continue;
      int64_t step = 0;
      check(!__builtin_mul_overflow(b.shape[i] - 1, b.strides[i], &step) &&
                !__builtin_add_overflow(last, step, &last) && is_size(last) &&
                !__builtin_mul_overflow(numel, b.shape[i], &numel) && is_size(numel),
            "buffer {}: more elements than any memory holds", b.name);
    }
    const int64_t needed = b.bits ? bytes_of_bits(numel) : numel == 0 ? 0 : (last + 1) * size_of(b.dtype);
    check(!b.bits || (b.dtype == DType::Bool && (numel == 0 || last + 1 == numel) && b.over < 0 &&
                      (b.space == MemorySpace::Temp || b.space == MemorySpace::Saved)),
          "buffer {}: bits, but no dense bools of the plan's own", b.name);
    check(b.bytes >= needed, "buffer {}: {} bytes, its elements need {}", b.name, b.bytes, needed);
    const auto within = [&](int64_t size, const char* what) {
      check(b.offset >= 0 && b.offset % kAlignment == 0, "buffer {}: offset {} is not a multiple of {}", b.name,
            b.offset, kAlignment);
      check(b.bytes <= size - b.offset, "buffer {}: {} bytes at {}, behind the {} bytes of {}", b.name, b.bytes,
            b.offset, size, what);
    };
    switch (b.space) {
      case MemorySpace::Input:
        check(b.index >= 0 && b.index < p_.input_count, "buffer {}: input {} of {}", b.name, b.index, p_.input_count);
        inputs_.insert(b.index);
        break;
      case MemorySpace::Output:
        check(b.index >= 0 && b.index < p_.output_count, "buffer {}: output {} of {}", b.name, b.index,
              p_.output_count);
        check(output_indices_.insert(b.index).second, "buffer {}: a second buffer for output {}", b.name, b.index);
        break;
      case MemorySpace::Saved: within(p_.saved_bytes, "saved memory"); break;
      case MemorySpace::Temp: within(p_.temp_bytes, "the arena"); break;
      case MemorySpace::Constant: within(static_cast<int64_t>(p_.constants.size()), "constants"); break;
      case MemorySpace::Extern: break;
      case MemorySpace::Draw:
        check(b.bytes == 16 && !p_.device.empty(), "buffer {}: a draw is two i64, on a device", b.name);
        break;
    }
  }

  void remarks() const {
    check(p_.remarks.size() <= 2 * kMostRemarks, "{} remarks", p_.remarks.size());
    for (const Remark& r : p_.remarks)
      check(!r.what.empty() && !r.reason.empty() && r.origins.size() <= 2 && r.count >= 1 && r.bytes >= 0,
            "remark '{}: {}': {} lines, {} times, {} bytes", r.what, r.reason, r.origins.size(), r.count, r.bytes);
  }

  /// Whether kernels are run by blocks of threads, which find their arguments in a table.
  bool in_blocks() const { return !p_.kernels.empty() && p_.kernels[0].threads > 0; }

  void kernel(const Kernel& k) const {
    check(k.entry >= 0 && k.entry < static_cast<int64_t>(k.code.size()), "kernel {}: entry {} outside its {} bytes",
          k.name, k.entry, k.code.size());
    check(k.threads >= 0 && k.threads <= 1024 && (k.threads == 0 || !p_.device.empty()),
          "kernel {}: {} threads a block for {}", k.name, k.threads, p_.device.empty() ? "a CPU" : p_.device);
    check((k.threads > 0) == (p_.kernels[0].threads > 0),
          "kernel {} runs in blocks of threads and {} does not, or the other way round", k.name, p_.kernels[0].name);
    check(is_size(k.scratch_bytes), "kernel {}: {} bytes of scratch", k.name, k.scratch_bytes);
  }

  void in_range(const Step& s, int b) const {
    check(b >= 0 && b < static_cast<int>(p_.buffers.size()), "step {}: buffer {} of {}", s.name, b, p_.buffers.size());
  }

  void step(const Step& s) {
    const auto distinct = [&](const std::vector<int>& list, const char* what) {
      for (int b : list) in_range(s, b);
      std::set<int> set(list.begin(), list.end());
      check(set.size() == list.size(), "step {}: a buffer twice among its {}", s.name, what);
      return set;
    };
    for (int b : s.arguments) in_range(s, b);
    const std::set<int> arguments(s.arguments.begin(), s.arguments.end());
    for (int b : s.aliases)
      check(s.kind == StepKind::Extern && arguments.contains(b),
            "step {}: a result is a view of buffer {}, which is no argument of a call", s.name, b);
    const std::set<int> reads = distinct(s.reads, "reads"), writes = distinct(s.writes, "writes");
    switch (s.kind) {
      case StepKind::Kernel: {
        check(s.kernel >= 0 && s.kernel < static_cast<int>(p_.kernels.size()), "step {}: kernel {} of {}", s.name,
              s.kernel, p_.kernels.size());
        check(s.parallel_extent >= 0, "step {}: negative parallel extent", s.name);
        std::set<int> effects = reads, known = arguments;
        effects.insert(writes.begin(), writes.end());
        if (s.guard >= 0) known.insert(s.guard);
        check(effects == known, "step {}: its declared effects are not its arguments", s.name);
        check(s.target.empty() || (s.target == "copy" && s.arguments.size() >= 2), "step {}: a kernel that is a {}",
              s.name, s.target);
        check(s.shifts.empty() || (s.shifts.size() == s.arguments.size() && !in_blocks()),
              "step {}: one shift an argument is wanted, and none of a kernel of blocks", s.name);
        for (size_t i = 0; i < s.shifts.size(); ++i)
          check(s.shifts[i] >= 0 && s.shifts[i] <= p_.buffers[s.arguments[i]].bytes,
                "step {}: argument {} begins outside of its buffer", s.name, i);
        break;
      }
      case StepKind::Extern:
        check(reads == arguments, "step {}: its declared reads are not its arguments", s.name);
        check(!s.target.empty(), "step {}: no target", s.name);
        break;
      case StepKind::Random: {
        check(s.p >= 0 && s.p <= 1, "step {}: probability {}", s.name, s.p);
        if (s.kernel < 0 && s.writes.empty()) {
          check(s.reads.empty() && s.arguments.empty() && s.increment >= 0,
                "step {}: a mask that nobody reads has a number of elements, and no buffers", s.name);
          break;
        }
        check(s.writes.size() == 1, "step {}: a draw writes one buffer", s.name);
        if (s.kernel < 0) {
          check(s.reads.empty() && s.arguments.empty(), "step {}: a draw reads nothing", s.name);
        } else {
          check(s.kernel < static_cast<int>(p_.kernels.size()) && s.parallel_extent >= 0, "step {}: kernel {} of {}",
                s.name, s.kernel, p_.kernels.size());
          check(s.reads.size() == 1 && s.arguments == std::vector<int>{s.reads[0], s.writes[0]} &&
                    p_.buffers[s.reads[0]].space == MemorySpace::Draw && draws_.insert(s.reads[0]).second,
                "step {}: a kernel of a draw has a Draw buffer of its own and the mask as arguments", s.name);
          check(s.increment > 0 && s.increment % 4 == 0, "step {}: the generator moves on by {}", s.name, s.increment);
        }
        const Buffer& b = p_.buffers[s.writes[0]];
        int64_t numel = 1;
        for (int64_t d : b.shape) numel *= d;
        // Draws fill memory in its own order; axes may lie in it in any order, but without gaps (strides were checked
        // against bytes).
        check(b.dtype == DType::Bool && b.bytes == (b.bits ? bytes_of_bits(numel) : numel),
              "step {}: {} is not a dense bool buffer", s.name, b.name);
        break;
      }
      case StepKind::Product: break;  // below
      case StepKind::Start: {
        std::set<int> effects = reads;
        effects.insert(writes.begin(), writes.end());
        check(effects == arguments, "step {}: its declared effects are not its arguments", s.name);
        check(!s.target.empty(), "step {}: no target", s.name);
        check(s.seconds >= 0 && std::isfinite(s.seconds), "step {}: lasts {} s", s.name, s.seconds);
        break;
      }
      case StepKind::Wait: wait(s, reads, writes); return;
    }
    check(s.token == -1 || s.kind == StepKind::Start, "step {}: has a token, but starts nothing and waits for nothing",
          s.name);
    check(s.guard >= -1, "step {}: guard {}", s.name, s.guard);
    if (s.guard >= 0) guard(s, reads, writes);
    if (s.kind == StepKind::Product) product(s);
    untouched(s);
    if (s.kind == StepKind::Start) start(s);
    for (int b : s.reads)
      check(!p_.buffers[b].bits || s.kind == StepKind::Kernel, "step {}: reads {}, which is bits", s.name,
            p_.buffers[b].name);
    for (int b : s.writes)
      check(!p_.buffers[b].bits || s.kind == StepKind::Random, "step {}: writes {}, which is bits", s.name,
            p_.buffers[b].name);
    for (int b : s.reads) {
      const MemorySpace space = p_.buffers[b].space;
      const bool given = space == MemorySpace::Input || space == MemorySpace::Constant ||
                         (space == MemorySpace::Draw && s.kind == StepKind::Random) ||
                         (space == MemorySpace::Saved && !written_here_.contains(b));
      check(space != MemorySpace::Input || !written_[b], "step {}: reads {} after its update", s.name,
            p_.buffers[b].name);
      check(given || written_[b] || p_.buffers[b].bytes == 0, "step {}: reads {} before anything was written there",
            s.name, p_.buffers[b].name);
    }
    for (int b : s.writes) {
      const MemorySpace space = p_.buffers[b].space;
      check(space != MemorySpace::Constant && space != MemorySpace::Draw &&
                (space != MemorySpace::Input || p_.buffers[b].updated),
            "step {}: writes {}, an input or a constant", s.name, p_.buffers[b].name);
      check(space != MemorySpace::Input || !written_[b], "step {}: updates {} a second time", s.name,
            p_.buffers[b].name);
      check(space != MemorySpace::Extern || s.kind == StepKind::Extern, "step {}: writes {}, the framework's memory",
            s.name, p_.buffers[b].name);
      written_[b] = true;
    }
  }

  /// What is in flight has its memory to itself.
  void untouched(const Step& s) const {
    const auto refuse = [&](int b, int token, const char* how) {
      check(token < 0, "step {}: {} {}, which {} has in flight", s.name, how, p_.buffers[b].name,
            token < 0 ? "" : in_flight_.at(token)->name);
    };
    for (int b : s.reads) refuse(b, written_in_flight_[b], "reads");
    for (int b : s.writes) {
      refuse(b, written_in_flight_[b], "writes");
      refuse(b, read_in_flight_[b].empty() ? -1 : *read_in_flight_[b].begin(), "writes");
    }
  }

  void start(const Step& s) {
    check(s.token >= 0 && s.token < starts_, "step {}: token {} of {}", s.name, s.token, starts_);
    check(tokens_.insert(s.token).second, "step {}: token {} a second time", s.name, s.token);
    in_flight_.emplace(s.token, &s);
    for (int b : s.reads) read_in_flight_[b].insert(s.token);
    for (int b : s.writes) written_in_flight_[b] = s.token;
  }

  void guard(const Step& s, const std::set<int>& reads, const std::set<int>& writes) const {
    check(s.kind == StepKind::Kernel, "step {}: guarded, but no kernel", s.name);
    in_range(s, s.guard);
    const Buffer& b = p_.buffers[s.guard];
    int64_t numel = 1;
    for (int64_t d : b.shape) numel *= d;
    check(b.dtype == DType::Bool && numel == 1 && !b.bits && reads.contains(s.guard) && !writes.contains(s.guard),
          "step {}: its guard {} is no bool that it reads", s.name, b.name);
    for (int w : writes) {
      const Buffer& to = p_.buffers[w];
      const bool temporary = to.space == MemorySpace::Temp || (to.space == MemorySpace::Saved && to.index < 0);
      check(written_[w] || to.over >= 0 || temporary, "step {}: may be passed over, and nobody else writes {}", s.name,
            to.name);
    }
  }

  void wait(const Step& s, const std::set<int>& reads, const std::set<int>& writes) {
    const auto it = in_flight_.find(s.token);
    check(it != in_flight_.end(), "step {}: waits for token {}, which is not in flight", s.name, s.token);
    const Step& start = *it->second;
    check(s.arguments.empty() && reads == std::set<int>(start.reads.begin(), start.reads.end()) &&
              writes == std::set<int>(start.writes.begin(), start.writes.end()),
          "step {}: its effects are not those of {}", s.name, start.name);
    in_flight_.erase(it);
    for (int b : reads) read_in_flight_[b].erase(s.token);
    for (int b : writes) written_in_flight_[b] = -1;
  }

  void product(const Step& s) const {
    const Product& p = s.product;
    check(!p_.device.empty(), "step {}: the library multiplies on a device", s.name);
    using Wide = __int128;
    for (int64_t extent : {p.batch, p.m, p.n, p.k})
      check(extent > 0 && is_size(extent), "step {}: a product of nothing", s.name);
    const bool sums = p.sums_of != SumsOf::None;
    const size_t added = (p.bias ? 1 : 0) + (p.addend ? 1 : 0);
    check(s.arguments.size() == 4 + added + sums,
          "step {}: its arguments are lhs, rhs, result, memory to use and {} more", s.name, added + sums);
    std::set<int> read{s.arguments[0], s.arguments[1]};
    read.insert(s.arguments.begin() + 4, s.arguments.begin() + 4 + static_cast<int64_t>(added));
    std::vector<int> written{s.arguments[2], s.arguments[3]};
    if (sums) written.push_back(s.arguments.back());
    check(std::set<int>(s.reads.begin(), s.reads.end()) == read && s.writes == written,
          "step {}: its declared effects are not its arguments", s.name);
    const auto within = [&](const Matrix& x, int64_t rows, int64_t columns, int b) {
      check((x.row_stride == 1 && x.column_stride >= rows) || (x.column_stride == 1 && x.row_stride >= columns),
            "step {}: a matrix without rows or columns side by side", s.name);
      check(is_size(x.offset) && is_size(x.batch_stride) && is_size(x.row_stride) && is_size(x.column_stride),
            "step {}: a negative stride", s.name);
      const Wide last = x.offset + Wide{p.batch - 1} * x.batch_stride + Wide{rows - 1} * x.row_stride +
                        Wide{columns - 1} * x.column_stride;
      check((last + 1) * size_of(x.dtype) <= p_.buffers[b].bytes, "step {}: a matrix reaches beyond {}", s.name,
            p_.buffers[b].name);
    };
    within(p.lhs, p.m, p.k, s.arguments[0]);
    within(p.rhs, p.k, p.n, s.arguments[1]);
    within(p.result, p.m, p.n, s.arguments[2]);
    if (p.bias)
      check(p.n * size_of(p.result.dtype) <= p_.buffers[s.arguments[4]].bytes,
            "step {}: a bias of less than {} columns", s.name, p.n);
    if (p.addend) within(p.result, p.m, p.n, s.arguments[p.bias ? 5 : 4]);
    if (!sums) return;
    const bool of_lhs = p.sums_of == SumsOf::Lhs;
    check(p.batch == 1 && !p.bias && (of_lhs ? p.lhs.row_stride : p.rhs.column_stride) == 1,
          "step {}: sums of an operand that the library does not sum", s.name);
    check((of_lhs ? p.m : p.n) * size_of(p.result.dtype) <= p_.buffers[s.arguments.back()].bytes,
          "step {}: no room for its sums", s.name);
    check(p.batch == 1 || p.result.batch_stride >= Wide{p.m} * p.n, "step {}: results of two batches overlap", s.name);
  }

  void outputs() const {
    check(static_cast<int64_t>(p_.outputs.size()) == p_.output_count, "{} outputs listed, {} counted",
          p_.outputs.size(), p_.output_count);
    std::set<int64_t> named;
    for (size_t i = 0; i < p_.outputs.size(); ++i) {
      const int b = p_.outputs[i];
      check(b >= -1 && b < static_cast<int>(p_.buffers.size()), "output {}: buffer {} of {}", i, b, p_.buffers.size());
      if (b < 0 || p_.buffers[b].space == MemorySpace::Input) continue;
      const Buffer& buffer = p_.buffers[b];
      check(buffer.space == MemorySpace::Output && buffer.index == static_cast<int64_t>(i),
            "output {}: {} is not its buffer", i, buffer.name);
      check(written_[b] || buffer.bytes == 0, "output {}: {} is never written", i, buffer.name);
      named.insert(buffer.index);
    }
    for (int64_t index : output_indices_)
      check(named.contains(index), "output {}: has a buffer, but is not among the outputs", index);
  }

  bool lies_over(int a, int b) const {
    for (int i = p_.buffers[a].over; i >= 0; i = p_.buffers[i].over)
      if (i == b) return true;
    return false;
  }

  void result_over(int number, const std::vector<LiveRange>& live) {
    const Buffer& b = p_.buffers[number];
    check(b.over < static_cast<int>(p_.buffers.size()) && p_.buffers[b.over].space == MemorySpace::Input,
          "buffer {}: a result is over what is no input", b.name);
    const Buffer& below = p_.buffers[b.over];
    check(b.bytes == below.bytes && !below.updated && below.over < 0,
          "buffer {}: a result is over {}, but not in its memory", b.name, below.name);
    check(given_away_.insert(below.index).second, "buffer {}: a second result is over {}", b.name, below.name);
    const auto is_below = [&](int other) {
      return other >= 0 && p_.buffers[other].space == MemorySpace::Input && p_.buffers[other].index == below.index;
    };
    check(std::none_of(p_.outputs.begin(), p_.outputs.end(), is_below),
          "buffer {}: a result is over {}, which is a result itself", b.name, below.name);
    const int first = live[number].first;
    for (int s = std::max(first, 0); first >= 0 && s < static_cast<int>(p_.steps.size()); ++s)
      check(std::none_of(p_.steps[s].reads.begin(), p_.steps[s].reads.end(), is_below) ||
                (s == first && p_.steps[s].kind == StepKind::Kernel),
            "step {}: reads {} after {} was written over it", p_.steps[s].name, below.name, b.name);
  }

  void over(int number, const std::vector<LiveRange>& live) {
    const Buffer& b = p_.buffers[number];
    if (b.space == MemorySpace::Output) return result_over(number, live);
    int lowest = number;
    for (size_t steps = 0; p_.buffers[lowest].over >= 0; lowest = p_.buffers[lowest].over)
      check(p_.buffers[lowest].over < static_cast<int>(p_.buffers.size()) && ++steps <= p_.buffers.size(),
            "buffer {}: over what is not there", b.name);
    const Buffer &below = p_.buffers[b.over], &first = p_.buffers[lowest];
    check(b.space == below.space && b.offset == below.offset && b.bytes == below.bytes,
          "buffer {}: is over {}, but not in its memory", b.name, below.name);
    const bool fills = b.space == MemorySpace::Saved && b.index >= 0 && written_here_.contains(number);
    check(b.space == MemorySpace::Temp || (b.space == MemorySpace::Saved && b.index < 0) || fills,
          "buffer {}: is over {}, but no temporary", b.name, below.name);
    check(below.space == MemorySpace::Temp || below.index < 0 || !written_here_.contains(b.over),
          "buffer {}: is over {}, which is kept", b.name, below.name);
    check(
        first.space == MemorySpace::Temp || first.index < 0 || (p_.overwrites_saved && !written_here_.contains(lowest)),
        "buffer {}: is over {}, which is kept", b.name, first.name);
    if (live[number].first < 0) return;
    const Step& s = p_.steps[live[number].first];
    const auto among = [](const std::vector<int>& list, int x) {
      return std::find(list.begin(), list.end(), x) != list.end();
    };
    check(s.kind == StepKind::Kernel && among(s.writes, number) && among(s.reads, b.over) &&
              live[b.over].last == live[number].first,
          "buffer {}: is over {}, and {} is not the kernel between them", b.name, below.name, s.name);
  }

  /// A kernel that reads a view may write over what it lies in no more than a later one may: `over` was proved for the
  /// buffer's own elements.
  void views() const {
    for (const ViewOf& v : plan::views(p_))
      for (int s = v.live.first + 1; s <= v.live.last; ++s)
        for (int w : p_.steps[s].writes)
          check(w != v.buffer && !lies_over(w, v.buffer), "step {}: writes {} while {}, a view of {}, is in use",
                p_.steps[s].name, p_.buffers[w].name, p_.buffers[v.view].name, p_.buffers[v.buffer].name);
  }

  void memory() {
    views();
    const std::vector<LiveRange> touched = live_ranges(p_), live = memory_ranges(p_);
    for (size_t b = 0; b < p_.buffers.size(); ++b)
      if (p_.buffers[b].over >= 0) over(static_cast<int>(b), touched);
    for (const MemorySpace space : {MemorySpace::Temp, MemorySpace::Saved}) {
      std::vector<int> order;
      for (size_t b = 0; b < p_.buffers.size(); ++b)
        if (p_.buffers[b].space == space && p_.buffers[b].bytes > 0) order.push_back(static_cast<int>(b));
      std::sort(order.begin(), order.end(), [&](int a, int b) { return p_.buffers[a].offset < p_.buffers[b].offset; });
      for (size_t i = 0; i < order.size(); ++i) {
        const Buffer& a = p_.buffers[order[i]];
        for (size_t j = i + 1; j < order.size() && p_.buffers[order[j]].offset < a.offset + a.bytes; ++j) {
          const Buffer& b = p_.buffers[order[j]];
          // Two slots that nobody writes here may be one (a value saved twice is not, but a reader need not know).
          const bool given =
              space == MemorySpace::Saved && !written_here_.contains(order[i]) && !written_here_.contains(order[j]);
          const bool handed_on = lies_over(order[i], order[j]) || lies_over(order[j], order[i]);
          check(given || handed_on || !live[order[i]].meets(live[order[j]]),
                "{} and {} share bytes at {} while both live", a.name, b.name, b.offset);
        }
      }
    }
  }

  const Plan& p_;
  std::vector<bool> written_;                  // up to the step being checked
  std::set<int> written_here_;                 // by any step of this plan
  int64_t starts_ = 0;                         // steps that start something
  std::set<int> tokens_;                       // of those up to the step being checked,
  std::map<int, const Step*> in_flight_;       // and of these, those that nobody has waited for
  std::vector<std::set<int>> read_in_flight_;  // by buffer: tokens
  std::vector<int> written_in_flight_;         // by buffer: a token, or -1
  std::set<int> draws_;                        // Draw buffers of the steps so far
  std::set<int64_t> given_away_;               // inputs whose memory a result takes
  std::set<int64_t> output_indices_;           // with a buffer
  std::multiset<int64_t> inputs_;              // one entry a buffer
};

}  // namespace

void verify(const Plan& plan) { Verifier(plan).run(); }

}  // namespace trainc::plan
