#include "schedule/framework_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace trainc::schedule {
namespace {

std::string list(const Dims& d) { return fmt::format("[{}]", fmt::join(d, ",")); }
int64_t product(const Dims& d) { return std::accumulate(d.begin(), d.end(), int64_t{1}, std::multiplies<>()); }
bool all_are(const Dims& d, int64_t value) {
  return std::all_of(d.begin(), d.end(), [=](int64_t x) { return x == value; });
}
const Dims kTransposed{0, 2, 1};

/// An operand while what lies over its memory is taken off, from the contraction down.
struct View {
  const Node* at;
  std::vector<const Node*> above;
  std::vector<std::string> steps;  // from the memory up they are to be applied: the last one first
  bool bf16 = false;

  void down() { above.push_back(at), at = at->in(0); }
  /// A cast of bf16, whose values f32 holds as they are.
  void skip_cast() {
    if (at->op == Op::Cast && at->dtype() == DType::F32 && at->in(0)->dtype() == DType::BF16) bf16 = true, down();
  }
  void reshape(const Dims& shape) { steps.push_back(fmt::format(R"(["reshape",{}])", list(shape))); }
  void permute(const Dims& order) { steps.push_back(fmt::format(R"(["permute",{}])", list(order))); }
  /// Takes off reshapes and permutes, which the framework makes as views.
  void peel() {
    for (skip_cast(); at->op == Op::Reshape || at->op == Op::Permute; down(), skip_cast()) {
      if (at->op == Op::Reshape) reshape(at->shape());
      else permute(at->as<AxesAttr>().axes);
    }
  }
  /// Begins with the memory's own shape: a buffer has that of a result of the graph where it is one.
  std::string text() const {
    std::string s = fmt::format(R"([["reshape",{}])", list(at->shape()));
    for (size_t i = steps.size(); i-- > 0;) s += "," + steps[i];
    return s + "]";
  }
};

/// The windows of an image, channels last, as rows: [1, images * windows, taps * channels].
struct Windows {
  View image;  // [images, size..., channels]
  Dims kernel, step, padding, dilation, grid;
  int64_t images, channels;
};

std::optional<Windows> windows_of(const Node* rows) {
  View v{rows, {}, {}};
  v.skip_cast();
  if (v.at->op != Op::Reshape) return std::nullopt;
  v.down(), v.skip_cast();
  const bool permuted = v.at->op == Op::Permute;
  const Dims order = permuted ? v.at->as<AxesAttr>().axes : Dims{};
  if (permuted) v.down(), v.skip_cast();
  if (v.at->op != Op::Window) return std::nullopt;
  const WindowAttr& w = v.at->as<WindowAttr>();
  const size_t axes = w.axes.size(), rank = axes + 2;
  if (v.at->in(0)->type.rank() != static_cast<int64_t>(rank) || axes > 3) return std::nullopt;
  for (size_t k = 0; k < axes; ++k)
    if (w.axes[k] != static_cast<int64_t>(k) + 1) return std::nullopt;
  Dims taps_before_channels(rank - 1);
  std::iota(taps_before_channels.begin(), taps_before_channels.end(), 0);
  for (size_t k = 0; k < axes; ++k) taps_before_channels.push_back(static_cast<int64_t>(rank + k));
  taps_before_channels.push_back(static_cast<int64_t>(rank) - 1);
  const Dims& shape = v.at->shape();
  Windows found{v,          w.size,
                w.step,     Dims(axes, 0),
                w.dilation, Dims(shape.begin() + 1, shape.begin() + 1 + static_cast<int64_t>(axes)),
                shape[0],   shape[rank - 1]};
  if (permuted ? order != taps_before_channels : !all_are(w.size, 1) && found.channels != 1) return std::nullopt;
  if (rows->shape() != Dims{1, found.images * product(found.grid), product(found.kernel) * found.channels})
    return std::nullopt;
  View& image = found.image;
  image.down(), image.skip_cast();
  if (image.at->op == Op::Pad && image.at->in(1)->op == Op::Constant && float_of(image.at->in(1)) == 0) {
    const PadAttr& pad = image.at->as<PadAttr>();
    const Dims inner(pad.low.begin() + 1, pad.low.end() - 1);
    if (pad.low == pad.high && pad.low.front() == 0 && pad.low.back() == 0) found.padding = inner, image.down();
  }
  image.peel();
  return found;
}

bool rounds_at_once(const Node* n, const Readers& readers) {
  const auto found = readers.find(n);
  return found != readers.end() && std::all_of(found->second.begin(), found->second.end(), [&](const Node* r) {
           if (r && (r->op == Op::Reshape || r->op == Op::Permute)) return rounds_at_once(r, readers);
           return r && r->op == Op::Cast && r->dtype() == DType::BF16;
         });
}

/// The operands' views, then what else the call wants.
std::string arguments(const View& a, const View& b, const std::string& more) {
  return fmt::format(R"({{"args":[{{"$":0}},{{"$":1}}],"kwargs":{{"views":[{},{}]{}}}}})", a.text(), b.text(), more);
}
std::string arguments(const Windows& w, const View& other) {
  return arguments(w.image, other,
                   fmt::format(R"(,"kernel":{},"stride":{},"padding":{},"dilation":{})", list(w.kernel), list(w.step),
                               list(w.padding), list(w.dilation)));
}

FrameworkCall call_of(const char* target, std::string arguments, View a, View b, Dims result, Dims order) {
  const DType d = a.bf16 ? DType::BF16 : DType::F32;
  return {{{a.at, std::move(a.above)}, {b.at, std::move(b.above)}},
          ExternAttr{target, std::move(arguments), {Type{d, std::move(result)}}},
          std::move(order)};
}

/// lhs: windows; rhs: [1, O, taps * C]. A convolution: [images, grid..., O].
FrameworkCall convolution(const Windows& w, const Node* weight) {
  const int64_t out = weight->shape()[1];
  View v{weight, {}, {}};
  Dims shape{out}, result{w.images};
  shape.insert(shape.end(), w.kernel.begin(), w.kernel.end()), shape.push_back(w.channels);
  result.insert(result.end(), w.grid.begin(), w.grid.end()), result.push_back(out);
  v.reshape(shape);
  v.peel();
  return call_of("framework.convolution", arguments(w, v), w.image, v, result, {});
}

/// Sums over the windows; dy: [1, O, images * windows]. The gradient of the weight: [O, C, taps...].
FrameworkCall convolution_weight(const Windows& w, const Node* dy, bool windows_first) {
  const int64_t out = dy->shape()[1], axes = static_cast<int64_t>(w.kernel.size());
  View v{dy, {}, {}};
  Dims shape{w.images}, result{out, w.channels}, taps;
  shape.insert(shape.end(), w.grid.begin(), w.grid.end()), shape.push_back(out);
  result.insert(result.end(), w.kernel.begin(), w.kernel.end());
  for (int64_t k = 0; k < axes; ++k) taps.push_back(2 + k);
  taps.push_back(1);
  taps.insert(windows_first ? taps.end() : taps.begin(), 0);
  v.reshape(shape);
  v.permute(kTransposed);
  v.peel();
  return call_of("framework.convolution_weight", arguments(w, v), w.image, v, result, taps);
}

const Node* transposed(const Node* n) {
  return n->op == Op::Permute && n->as<AxesAttr>().axes == kTransposed ? n->in(0) : nullptr;
}

FrameworkCall matched(const Node* lhs, const Node* rhs) {
  if (lhs->shape()[0] == 1) {
    if (const auto w = windows_of(lhs)) return convolution(*w, rhs);
    if (const Node* a = transposed(lhs))
      if (const auto w = windows_of(a)) return convolution_weight(*w, rhs, true);
    if (const Node* b = transposed(rhs))
      if (const auto w = windows_of(b)) return convolution_weight(*w, lhs, false);
  }
  View a{lhs, {}, {}}, b{rhs, {}, {}};
  a.peel(), b.peel();
  return call_of("framework.product", arguments(a, b, ""), a, b, {lhs->shape()[0], lhs->shape()[1], rhs->shape()[1]},
                 {});
}

}  // namespace

const Node* FrameworkCall::as_contraction(Builder& b, const Node* n, const Node* contraction) const {
  return b.cast(b.reshape(order.empty() ? n : b.permute(n, order), contraction->shape()), contraction->dtype());
}

const Node* FrameworkCall::as_result(Builder& b, const Node* n) const {
  n = b.cast(n, result().dtype);
  if (order.empty()) return b.reshape(n, result().shape);
  Dims permuted, back(order.size());
  for (size_t k = 0; k < order.size(); ++k)
    permuted.push_back(result().shape[order[k]]), back[order[k]] = static_cast<int64_t>(k);
  return b.permute(b.reshape(n, permuted), back);
}

Readers readers_of(const Graph& graph) {
  Readers readers;
  for (const Node* n : graph.live())
    for (const Node* i : n->inputs) readers[i].push_back(n);
  for (const Output& o : graph.outputs)
    if (o.value) readers[o.value].push_back(nullptr);
  return readers;
}

OrRefused<FrameworkCall> framework_call(const Node* c, const Readers& readers) {
  const Node *lhs = c->in(0), *rhs = c->in(1);
  if (c->dtype() != DType::F32) return "its sums are not in f32";
  if (c->type.numel() == 0 || lhs->type.numel() == 0) return "there is nothing to multiply";
  FrameworkCall call = matched(lhs, rhs);
  const DType d = call.result().dtype;
  for (const FrameworkCall::Operand& o : call.operands)
    if (o.memory->dtype() != d || o.memory->op == Op::Constant || o.memory->op == Op::Iota)
      return "an operand is no memory of the result's dtype";
  if (d == DType::BF16 && !rounds_at_once(c, readers)) return "its f32 sums are wanted before they are rounded";
  return call;
}

}  // namespace trainc::schedule
