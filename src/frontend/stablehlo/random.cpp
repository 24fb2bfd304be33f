// Random bits: a function of a key and a counter, as XLA:CPU lays the counter out over the elements. Both functions are
// of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): a counter of words and a key give words.
#include <array>

#include "frontend/formulas/shapes.h"
#include "frontend/stablehlo/bits.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;

template <size_t N>
using Words = std::array<Value, N>;  // u32 each, the lowest first

Words<2> words_of(Value u64) { return {cast(u64, DType::U32), cast(shift(Op::Shr, u64, 32), DType::U32)}; }
Value joined(Value low, Value high) { return cast(low, DType::U64) | shift(Op::Shl, cast(high, DType::U64), 32); }
Value turned_left(Value x, int64_t by) { return shift(Op::Shl, x, by) | shift(Op::Shr, x, 32 - by); }

/// Threefry-2x32 of 20 rounds.
Words<2> threefry(Words<2> x, const Words<2>& key) {
  constexpr int kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const Value keys[3] = {key[0], key[1], key[0] ^ key[1] ^ integer(key[0], 0x1bd11bda)};
  x = {x[0] + keys[0], x[1] + keys[1]};
  for (int four = 1; four <= 5; ++four) {
    for (const int by : kTurns[(four - 1) % 2]) {
      x[0] = x[0] + x[1];
      x[1] = turned_left(x[1], by) ^ x[0];
    }
    x = {x[0] + keys[four % 3], x[1] + keys[(four + 1) % 3] + integer(x[1], four)};
  }
  return x;
}

/// Philox-4x32 of 10 rounds.
Words<4> philox(Words<4> x, Words<2> key) {
  for (int round = 0; round < 10; ++round) {
    const Value a = integer(x[0], 0xd2511f53), b = integer(x[2], 0xcd9e8d57);
    x = {high_product(x[2], b) ^ x[1] ^ key[0], x[2] * b, high_product(x[0], a) ^ x[3] ^ key[1], x[0] * a};
    key = {key[0] + integer(key[0], 0x9e3779b9), key[1] + integer(key[1], 0xbb67ae85)};
  }
  return x;
}

struct Drawn { Value bits, state; };  // u32 or u64, of the shape that is asked for; u64 [n]

/// Parts of equal shape whose elements alternate, as the first `shape` of them in row-major order.
Value alternating(const Values& parts, const Dims& shape) {
  std::vector<const Node*> columns;
  for (const Value& part : parts) columns.push_back(reshape(part, {part.numel(), 1}).node);
  const Value all = with(parts[0], parts[0].b->concat(columns, 1));
  const Value flat = reshape(all, {all.numel()});
  return reshape(with(flat, flat.b->slice(flat.node, {0}, {formulas::product(shape)}, {1})), shape);
}

Value word(Value state, int64_t i) { return reshape(with(state, state.b->slice_axis(state.node, 0, i, 1)), {}); }
Value state_of(const Values& words) {
  std::vector<const Node*> parts;
  for (const Value& w : words) parts.push_back(reshape(w, {1}).node);
  return with(words[0], words[0].b->concat(parts, 0));
}
/// 0, 1, ... in the row-major order of a shape.
Value counted(Value beside, int64_t n) { return with(beside, beside.b->iota(DType::U64, {n}, 0)); }

/// State: key, counter. 32 bits: each counter gives two neighbours along one axis, which is the first even one, else
/// the first of the largest; the counters run over the shape with that axis halved.
Drawn of_threefry(Value state, const Dims& shape, bool wide) {
  const Value key = word(state, 0), counter = word(state, 1);
  Dims halved = shape;
  auto axis = std::find_if(halved.begin(), halved.end(), [](int64_t n) { return n % 2 == 0; });
  if (axis == halved.end()) axis = std::max_element(halved.begin(), halved.end());
  if (!wide && axis != halved.end()) *axis = (*axis + 1) / 2;
  const int64_t n = formulas::product(halved);
  const Words<2> x = threefry(words_of(counter + counted(counter, n)), words_of(key));
  const Value after = state_of({key, counter + integer(counter, n)});
  if (wide) return {reshape(joined(x[0], x[1]), shape), after};
  if (shape.empty()) return {reshape(x[0], {}), after};
  const auto at = axis - halved.begin();
  Dims apart = halved, doubled = halved;
  apart.insert(apart.begin() + at + 1, 1);
  doubled[at] *= 2;
  const std::array both{reshape(x[0], apart).node, reshape(x[1], apart).node};
  const Value pairs = reshape(with(x[0], x[0].b->concat(both, at + 1)), doubled);
  const Dims first(shape.size(), 0), each(shape.size(), 1);
  return {with(pairs, pairs.b->slice(pairs.node, first, shape, each)), after};
}

/// State: key, counter of 128 bits, its lower half first; of two numbers the other way, the key being the upper half,
/// too. Each counter gives 128 bits in row-major order.
Drawn of_philox(Value state, const Dims& shape, bool wide) {
  const bool long_state = state.size(0) > 2;
  const Value key = word(state, 0), low = word(state, 1), high = long_state ? word(state, 2) : key;
  const int64_t at_once = wide ? 2 : 4, n = (formulas::product(shape) + at_once - 1) / at_once;
  const auto plus = [&](Value by) {
    const Value sum = low + by;
    return std::array{sum, where(sum < low, high + integer(high, 1), high)};
  };
  const auto [lows, highs] = plus(counted(low, n));
  const Words<2> lower = words_of(lows), upper = words_of(highs);
  const Words<4> x = philox({lower[0], lower[1], upper[0], upper[1]}, words_of(key));
  const auto [next, next_high] = plus(integer(low, n));
  const Values kept = {x[0], x[1], x[2], x[3]};
  return {alternating(wide ? Values{joined(x[0], x[1]), joined(x[2], x[3])} : kept, shape),
          state_of(long_state ? Values{key, next, next_high} : Values{key, next})};
}

Values rng_bit_generator(const Call& c) {
  const Value state = c.operand(0);
  const std::string algorithm = c.text("rng_algorithm");
  const bool by_threefry = algorithm == "THREE_FRY";
  c.need(by_threefry || algorithm == "PHILOX" || algorithm == "DEFAULT", "its algorithm is not known");
  c.need(state.dtype() == DType::U64 && state.rank() == 1, "its state is not one of u64");
  c.need(state.size(0) == 2 || (state.size(0) == 3 && !by_threefry), "its state has another size");
  const Type& type = c.type(1);
  c.need(!is_float(type.dtype) && type.dtype != DType::Bool, "its bits are no integers");
  const bool wide = size_of(type.dtype) == 8;  // narrower ones are the lower bits of 32
  const Drawn drawn = (by_threefry ? of_threefry : of_philox)(state, type.shape, wide);
  return {drawn.state, cast(drawn.bits, type.dtype)};
}

}  // namespace

void add_random(Table& t) { t.add({"stablehlo.rng_bit_generator"}, rng_bit_generator); }

}  // namespace trainc::frontend::stablehlo
