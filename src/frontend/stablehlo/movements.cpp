// Constants, counters, and what moves elements without arithmetic.
#include <bit>
#include <cstring>

#include "frontend/formulas/slices.h"
#include "frontend/stablehlo/parts.h"
#include "frontend/stablehlo/table.h"
#include "support/rounding.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;

// --- constants

std::vector<uint8_t> from_base64(const std::string& text) {
  std::vector<uint8_t> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    if (c == '=') break;
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    require(digit >= 0, "the value is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) >= 8) bytes.push_back(static_cast<uint8_t>(bits >> (count -= 8)));
  }
  return bytes;
}

/// From the bytes of one part.
Value element(const Call& c, const uint8_t* bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, static_cast<size_t>(size_of(c.dtype())));
  if (is_float(c.dtype())) return c.scalar(c.dtype(), float_of_bits(c.dtype(), bits));
  return {&c.b, c.b.constant_int(c.dtype(), wrap_to(c.dtype(), static_cast<int64_t>(bits)))};
}

Values constant(const Call& c) {
  const Json& value = c.object("value");
  const bool told_once = value.contains("splat");
  const std::vector<uint8_t> bytes = from_base64(value.at(told_once ? "splat" : "bytes").get<std::string>());
  const int64_t parts = c.results.at(0), size = size_of(c.dtype());
  // one number is that of all elements, too: a region on scalars may stand for one on tensors
  const bool splat = told_once || static_cast<int64_t>(bytes.size()) == parts * size;
  const int64_t count = splat ? 1 : c.type().numel();
  c.need(static_cast<int64_t>(bytes.size()) == count * parts * size, "the value has not the bytes of its type");
  if (count > kMostConstants)
    c.fail("has " + std::to_string(count) + " elements: more than " + std::to_string(kMostConstants) +
           " are an argument's");
  Values values;
  for (int64_t part = 0; part < parts; ++part) {
    const auto at = [&](int64_t i) { return element(c, bytes.data() + (i * parts + part) * size); };
    if (splat || count == 0) {
      values.push_back(formulas::broadcast(splat ? at(0) : c.scalar(c.dtype(), 0), c.shape()));
      continue;
    }
    std::vector<const Node*> elements;
    for (int64_t i = 0; i < count; ++i) elements.push_back(reshape(at(i), {1}).node);
    values.push_back(reshape(Value{&c.b, c.b.concat(elements, 0)}, c.shape()));
  }
  return values;
}

Values iota(const Call& c) {
  const DType counter = is_float(c.dtype()) ? DType::I64 : c.dtype();
  return {cast(Value{&c.b, c.b.iota(counter, c.shape(), c.integer("iota_dimension"))}, c.dtype())};
}

// --- movements

/// Axis i of the operand is axis dimensions[i] of the result.
Values broadcast_in_dim(const Call& c) {
  Value x = c.operand(0);
  const Dims dimensions = c.list("broadcast_dimensions", static_cast<size_t>(x.rank()), 0);
  Dims order = formulas::all_axes(x.rank());
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return dimensions[i] < dimensions[j]; });
  Dims ones(c.shape().size(), 1);
  for (int64_t i = 0; i < x.rank(); ++i) ones.at(dimensions[i]) = x.size(i);
  return {formulas::broadcast(reshape(permute(x, order), ones), c.shape())};
}

Values slice(const Call& c) {
  const Dims start = c.list("start_indices"), step = c.list("strides", start.size(), 1);
  return {with(c.operand(0), c.b.slice(c.operand(0).node, start, c.shape(), step))};
}

Values pad(const Call& c) {
  const Value x = c.operand(0);
  const size_t rank = x.shape().size();
  const auto numbers = [&](const char* name) { return c.list(name, rank, 0); };
  return {
      padded(x, c.operand(1), numbers("edge_padding_low"), numbers("edge_padding_high"), numbers("interior_padding"))};
}

Values concatenate(const Call& c) {
  std::vector<const Node*> parts;
  for (const Value& v : c.in) parts.push_back(v.node);
  return {{&c.b, c.b.concat(parts, c.integer("dimension"))}};
}

// --- slices at computed places

/// The starts from operand `first` on, within bounds for a slice of `sizes`: i64 scalars.
Values starts_of(const Call& c, size_t first, const Dims& sizes) {
  Values starts;
  for (size_t axis = 0; axis < sizes.size(); ++axis)
    starts.push_back(clamped(c.operand(first + axis), c.operand(0).size(static_cast<int64_t>(axis)) - sizes[axis]));
  return starts;
}

Values dynamic_slice(const Call& c) {
  const Dims sizes = c.list("slice_sizes");
  const Values starts = starts_of(c, 1, sizes);
  Value x = c.operand(0);
  for (size_t axis = 0; axis < sizes.size(); ++axis)
    x = slice_from(x, static_cast<int64_t>(axis), starts[axis], sizes[axis], c.known);
  return {x};
}

Values dynamic_update_slice(const Call& c) {
  const Value x = c.operand(0), update = c.operand(1);
  return {updated(x, update, starts_of(c, 2, update.shape()), c.known)};
}

}  // namespace

void add_movements(Table& t) {
  t.add({"stablehlo.constant"}, constant);
  t.add({"stablehlo.iota"}, iota);
  t.add({"stablehlo.broadcast_in_dim"}, broadcast_in_dim);
  t.add({"stablehlo.reshape"}, [](const Call& c) { return Values{reshape(c.operand(0), c.shape())}; });
  t.add({"stablehlo.transpose"}, [](const Call& c) { return Values{permute(c.operand(0), c.list("permutation"))}; });
  t.add({"stablehlo.slice"}, slice);
  t.add({"stablehlo.pad"}, pad);
  t.add({"stablehlo.concatenate"}, concatenate);
  t.add({"stablehlo.reverse"}, [](const Call& c) {
    Dims axes = c.list("dimensions");
    std::sort(axes.begin(), axes.end());
    return Values{with(c.operand(0), c.b.reverse(c.operand(0).node, axes))};
  });
  t.add({"stablehlo.dynamic_slice"}, dynamic_slice);
  t.add({"stablehlo.dynamic_update_slice"}, dynamic_update_slice);
}

}  // namespace trainc::frontend::stablehlo
