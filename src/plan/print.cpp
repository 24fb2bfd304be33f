// The plan as text: what is in memory when, and what runs in which order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "plan/live.h"
#include "plan/plan.h"

namespace trainc::plan {
namespace {

std::string place(const Buffer& b) {
  switch (b.space) {
    case MemorySpace::Input: return fmt::format("input {}{}", b.index, b.updated ? " (updated)" : "");
    case MemorySpace::Output: return fmt::format("output {}", b.index);
    case MemorySpace::Saved: return fmt::format("{} +{}", b.index < 0 ? "saved temp" : "saved", b.offset);
    case MemorySpace::Temp: return fmt::format("temp +{}", b.offset);
    case MemorySpace::Constant: return fmt::format("constant +{}", b.offset);
    case MemorySpace::Extern: return "extern";
    case MemorySpace::Draw: return "draw";
  }
  return "?";
}

std::string names(const Plan& plan, const std::vector<int>& buffers) {
  std::vector<std::string> out;
  for (int b : buffers) out.push_back(plan.buffers.at(b).name);
  return fmt::format("{}", fmt::join(out, " "));
}

std::string what(const Plan& plan, const Step& s) {
  switch (s.kind) {
    case StepKind::Kernel:
      return fmt::format(
          "kernel {} over {}{}{}{}", plan.kernels.at(s.kernel).name, s.parallel_extent,
          s.target.empty() ? "" : ", a copy",
          s.shifts.empty() ? "" : fmt::format(", arguments from byte {} on", fmt::join(s.shifts, ", ")),
          s.guard < 0 ? "" : fmt::format(" where {}{}", s.guard_value ? "" : "not ", plan.buffers.at(s.guard).name));
    case StepKind::Extern:
      return fmt::format("extern {}{}{} {}", s.target,
                         s.random     ? " (random)"
                         : s.may_draw ? " (may draw)"
                                      : "",
                         s.aliases.empty() ? "" : " (a view of " + names(plan, s.aliases) + ")", s.arguments_json);
    case StepKind::Random:
      if (s.kernel < 0 && s.writes.empty())
        return fmt::format("random p={}, {} elements that nobody reads", s.p, s.increment);
      if (s.kernel < 0) return fmt::format("random p={}", s.p);
      return fmt::format("random p={}, kernel {} over {}, increment {}", s.p, plan.kernels.at(s.kernel).name,
                         s.parallel_extent, s.increment);
    case StepKind::Product: return print(s.product);
    case StepKind::Start:
      return fmt::format("start {} {} as token {}, {} s", s.target, s.arguments_json, s.token, s.seconds);
    case StepKind::Wait: return fmt::format("wait for token {}", s.token);
  }
  return "?";
}

}  // namespace

std::string print(const Product& p) {
  const auto matrix = [](const Matrix& x) {
    return fmt::format("{} +{} [{},{},{}]", name_of(x.dtype), x.offset, x.batch_stride, x.row_stride, x.column_stride);
  };
  return fmt::format("product {} x {} x {} x {}{}: {} = {} * {}{}{}{}{}", p.batch, p.m, p.n, p.k,
                     p.tf32 ? " in tf32" : "", matrix(p.result), matrix(p.lhs), matrix(p.rhs), p.bias ? " + bias" : "",
                     p.addend ? " + addend" : "",
                     p.sums_of == SumsOf::None  ? ""
                     : p.sums_of == SumsOf::Lhs ? ", sums of lhs"
                                                : ", sums of rhs",
                     p.algorithm.empty() ? "" : ", by " + p.algorithm);
}

std::string print(const Plan& plan, bool remarks) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "plan {} for {}: {} inputs, {} outputs, {} temp bytes, {} saved bytes, {} constant bytes{}\n",
                 plan.name, plan.device.empty() ? plan.cpu : plan.device, plan.input_count, plan.output_count,
                 plan.temp_bytes, plan.saved_bytes, plan.constants.size(),
                 plan.overwrites_saved ? ", overwrites what is saved" : "");
  const std::vector<LiveRange> live = live_ranges(plan);
  text += "buffers:\n";
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    fmt::format_to(out, "  {}: {} {}[{}]{} strides [{}], {} bytes{}, live [{}, {}]\n", b.name, place(b),
                   name_of(b.dtype), fmt::join(b.shape, ","), b.bits ? " bits" : "", fmt::join(b.strides, ","), b.bytes,
                   b.over < 0 ? "" : " over " + plan.buffers.at(b.over).name, live[i].first, live[i].last);
  }
  text += "steps:\n";
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& s = plan.steps[i];
    fmt::format_to(out, "  {}: {} = {}; arguments [{}], reads [{}], writes [{}], {} flops, {} bytes", i, s.name,
                   what(plan, s), names(plan, s.arguments), names(plan, s.reads), names(plan, s.writes), s.flops,
                   s.bytes);
    if (!s.origins.empty()) fmt::format_to(out, "   // {}", fmt::join(s.origins, ", "));
    text += '\n';
  }
  text += "outputs:";
  for (int b : plan.outputs) fmt::format_to(out, " {}", b < 0 ? "none" : plan.buffers.at(b).name);
  text += '\n';
  for (const std::string& note : plan.notes) fmt::format_to(out, "note: {}\n", note);
  if (!remarks || plan.remarks.empty()) return text;
  text += "remarks:\n";
  for (const Remark& r : plan.remarks) {
    fmt::format_to(out, "  {}: not {}: {}{}; {} x, {} bytes", r.stage, r.what, r.reason,
                   r.detail.empty() ? "" : " (" + r.detail + ")", r.count, r.bytes);
    if (!r.origins.empty()) fmt::format_to(out, "   // {}", fmt::join(r.origins, ", "));
    text += '\n';
  }
  return text;
}

}  // namespace trainc::plan
