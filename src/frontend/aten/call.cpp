#include "frontend/aten/call.h"

#include <algorithm>
#include <cmath>

#include "frontend/formulas/random.h"
#include "frontend/formulas/shapes.h"
#include "support/rounding.h"

namespace trainc::frontend::aten {

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
  if (a == DType::Bool) return b;
  if (b == DType::Bool) return a;
  if (size_of(a) != size_of(b)) return size_of(a) > size_of(b) ? a : b;
  return is_float(a) ? DType::F32 : DType::I16;  // bf16 with f16; u8 with i8
}

Value from_zero(Value sum, int64_t terms) { return terms == 1 && is_float(sum.dtype()) ? sum + 0.0 : sum; }

bool is_row_major(const Dims& shape, const Dims& strides) {
  int64_t expected = 1;
  for (int64_t d : shape)
    if (d == 0) return true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

namespace {
/// The number a JSON scalar stands for; {"float": "inf"} spells what JSON cannot.
std::optional<double> number_of(const Json& j) {
  if (j.is_boolean()) return j.get<bool>() ? 1 : 0;
  if (j.is_number()) return j.get<double>();
  if (j.is_object() && j.contains("float")) {
    const std::string text = j["float"];
    if (text == "inf") return INFINITY;
    if (text == "-inf") return -INFINITY;
    if (text == "nan") return NAN;
  }
  return std::nullopt;
}
}  // namespace

const ImportedValue* Arg::value() const {
  if (!json_ || !json_->is_object() || !json_->contains("n")) return nullptr;
  auto it = call_->environment.find((*json_)["n"].get<std::string>());
  if (it == call_->environment.end()) call_->fail("argument " + json_->dump() + " is not a tensor that was imported");
  return &it->second;
}

bool Arg::none() const {
  if (!json_ || json_->is_null()) return true;
  const ImportedValue* k = value();
  return k && !k->is_list && !k->nodes.at(0);
}

bool Arg::is_tensor() const { return !none() && value() && !value()->is_list; }

Value Arg::tensor() const {
  if (!is_tensor()) call_->fail("a tensor is missing");
  return {&call_->b, value()->nodes[0]};
}

Dims Arg::strides() const {
  if (!is_tensor()) call_->fail("a tensor is missing");
  return value()->strides.at(0);
}

int64_t Arg::offset() const {
  if (!is_tensor()) call_->fail("a tensor is missing");
  return value()->offsets.at(0);
}

bool Arg::of_argument() const {
  if (!is_tensor()) call_->fail("a tensor is missing");
  return value()->of_argument;
}

std::vector<std::optional<Value>> Arg::tensors() const {
  std::vector<std::optional<Value>> out;
  if (const ImportedValue* k = value(); k && k->is_list) {
    for (const Node* n : k->nodes) out.push_back(n ? std::optional(Value{&call_->b, n}) : std::nullopt);
    return out;
  }
  if (!is_list()) call_->fail("a list of tensors is missing");
  for (const Json& j : *json_) {
    Arg a;
    a.call_ = call_;
    a.json_ = &j;
    out.push_back(a.none() ? std::nullopt : std::optional(a.tensor()));
  }
  return out;
}

Value Arg::as(DType d) const {
  Builder& b = call_->b;
  if (is_tensor()) return cast(tensor(), d);
  if (json_ && json_->is_number_integer() && !is_float(d) && d != DType::Bool)
    return {&b, b.constant_int(d, json_->get<int64_t>())};
  const double v = number();
  if (d == DType::Bool) return {&b, b.constant_int(d, v != 0)};
  // Halves are reached through f32, as in eager and in the machine's own conversion.
  const double rounded = is_float(d) && size_of(d) == 2 ? static_cast<float>(v) : v;
  return {&b, b.constant(d, is_float(d) ? rounded : std::trunc(v))};
}

int64_t Arg::integer() const {
  if (!json_ || !(json_->is_number() || json_->is_boolean())) call_->fail("an integer is missing");
  return json_->is_boolean() ? json_->get<bool>() : json_->get<int64_t>();
}

double Arg::number() const {
  std::optional<double> v = json_ ? number_of(*json_) : std::nullopt;
  if (!v) call_->fail("a number is missing");
  return *v;
}

std::string Arg::text(const char* otherwise) const {
  return json_ && json_->is_string() ? json_->get<std::string>() : otherwise;
}

Dims Arg::ints() const {
  if (json_ && json_->is_number()) return {integer()};
  if (!is_list()) call_->fail("a list of integers is missing");
  Dims out;
  for (const Json& j : *json_) out.push_back(j.is_boolean() ? j.get<bool>() : j.get<int64_t>());
  return out;
}

DType Arg::dtype(DType otherwise) const {
  if (none()) return otherwise;
  if (!json_->is_object() || !json_->contains("dtype")) call_->fail("a dtype is missing");
  return dtype_of((*json_)["dtype"].get<std::string>());
}

Arg Call::arg(size_t position, const char* name) const {
  Arg a;
  a.call_ = this;
  if (position < args.size()) a.json_ = &args[position];
  else if (kwargs.is_object() && kwargs.contains(name)) a.json_ = &kwargs[name];
  return a;
}

const Type& Call::type(size_t i) const {
  if (!defined(i)) fail("result " + std::to_string(i) + " has no type");
  return *types[i];
}

DType Call::promoted(std::initializer_list<Arg> list) const {
  // [0]: tensors with dimensions, [1]: 0-dim tensors, [2]: Python numbers; a lower category only counts where it is of
  // a higher kind.
  std::optional<DType> category[3];
  for (const Arg& a : list) {
    if (a.none()) continue;
    int which = 2;
    DType d = default_dtype;
    if (a.is_tensor()) {
      which = a.tensor().rank() == 0;
      d = a.tensor().dtype();
    } else if (a.json_->is_boolean()) {
      d = DType::Bool;
    } else if (a.json_->is_number_integer()) {
      d = DType::I64;
    }
    category[which] = category[which] ? promote(*category[which], d) : d;
  }
  auto combine = [](std::optional<DType> high, std::optional<DType> low) {
    if (!high) return low;
    if (!low || is_float(*high)) return high;
    return *high == DType::Bool || is_float(*low) ? std::optional(promote(*high, *low)) : high;
  };
  std::optional<DType> d = combine(category[0], combine(category[1], category[2]));
  if (!d) fail("no argument gives a dtype");
  return *d;
}

bool Call::fits(size_t position, const char* name) const {
  const Arg a = arg(position, name);
  if (a.none() || a.is_tensor() || dtype() == DType::Bool) return true;
  const double v = a.number();
  if (is_float(dtype()))
    return !std::isfinite(v) || std::isfinite(round_to(dtype(), dtype() == DType::F64 ? v : static_cast<float>(v)));
  // one above the largest
  const double end = std::ldexp(1.0, static_cast<int>(size_of(dtype())) * 8 - !is_unsigned(dtype()));
  // an unsigned -1 is taken for the largest; NaN is none
  return v < end && v > (is_unsigned(dtype()) ? -end : -end - 1);
}

const Node* Call::give(Value v, size_t i) const {
  const Type& t = type(i);
  return b.broadcast(b.cast(v.node, t.dtype), t.shape);
}

Value Call::random_mask(const Dims& shape, const Dims& strides, double p) const {
  // Eager draws nothing where the answer is known (docs/frontend.md).
  if (p <= 0 || p >= 1) return full(shape, DType::Bool, p >= 1);
  Dims order = all_axes(shape.size());
  const bool by_memory = philox ? vector > 1 : generator == MaskGenerator::Twister;
  if (by_memory && strides.size() == shape.size())
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
      // one element: its stride means nothing
      const auto reach = [&](int64_t axis) { return shape[axis] == 1 ? INT64_MAX : strides[axis]; };
      return reach(x) > reach(y);
    });
  Dims drawn;
  for (int64_t axis : order) drawn.push_back(shape[axis]);
  return formulas::permute_back(formulas::random_mask(b, drawn, {draws++, p, threads, vector}), order);
}

void Call::fail(const std::string& what) const { throw InternalError(b.origin + ": " + target + ": " + what); }

int64_t wrap_axis(const Call& c, int64_t axis, int64_t rank) {
  const int64_t n = std::max<int64_t>(rank, 1);
  if (axis < -n || axis >= n) c.fail("axis " + std::to_string(axis) + " of rank " + std::to_string(rank));
  return axis < 0 ? axis + n : axis;
}

Dims axes_of(const Call& c, const Arg& a, int64_t rank) {
  if (a.none() || rank == 0) return all_axes(rank);
  Dims axes = a.ints();
  if (axes.empty()) return all_axes(rank);
  for (int64_t& axis : axes) axis = wrap_axis(c, axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

}  // namespace trainc::frontend::aten
