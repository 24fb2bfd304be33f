#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

int parts_of(const Json& value) { return value.at("dtype").get<std::string>().starts_with("complex<") ? 2 : 1; }

bool Call::is_complex() const {
  const auto any = [](const Parts& parts) { return std::find(parts.begin(), parts.end(), 2) != parts.end(); };
  return any(operands) || any(results);
}

Call Call::part(int which) const {
  Call one = *this;
  const auto take = [&](auto& from, Parts& parts) {
    std::decay_t<decltype(from)> taken;
    size_t at = 0;
    for (int& n : parts) taken.push_back(from[at + (n == 2 ? static_cast<size_t>(which) : 0)]), at += n, n = 1;
    from = std::move(taken);
  };
  take(one.in, one.operands);
  take(one.types, one.results);
  return one;
}

const Value& Call::operand(size_t i) const {
  if (i >= in.size()) fail("operand " + std::to_string(i) + " is missing");
  return in[i];
}

int64_t Call::integer(const char* attr) const {
  if (!attrs.contains(attr)) fail(std::string("has no attribute ") + attr);
  return attrs[attr].get<int64_t>();
}

Dims Call::list(const char* attr) const { return field(attrs, attr); }

Dims Call::list(const char* attr, size_t size, int64_t otherwise) const {
  if (!attrs.contains(attr)) return Dims(size, otherwise);
  Dims values = field(attrs, attr);
  if (values.size() != size) fail(std::string(attr) + " has not one number an axis");
  return values;
}

const Json& Call::object(const char* attr) const {
  if (!attrs.contains(attr) || !attrs[attr].is_object()) fail(std::string("has no attribute ") + attr);
  return attrs[attr];
}

const Json& Call::region(size_t i) const {
  if (i >= regions.size()) fail("region " + std::to_string(i) + " is missing");
  return regions[i];
}

void Call::fail(const std::string& what) const { throw Refused(b.origin + ": " + name + ": " + what); }

Dims field(const Json& object, const char* name) {
  if (!object.contains(name)) return {};
  const Json& value = object[name];
  return value.is_array() ? value.get<Dims>() : Dims{value.get<int64_t>()};
}

}  // namespace trainc::frontend::stablehlo
