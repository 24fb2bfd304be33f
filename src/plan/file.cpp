// A plan, or a foreach kernel, as bytes: a header, then CBOR. The header is magic, format version, length and checksum
// of what follows, so that damage is found before anything is decoded; what decodes is verified like a fresh plan.
// Change kVersion whenever a field below, the meaning of one, or the kernels' calling convention changes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "plan/cbor.h"
#include "plan/plan.h"
#include "support/error.h"
#include "support/remark_json.h"

namespace trainc::plan {

// What is stored, field by field; these lists must name every field of plan.h.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Buffer, name, space, index, offset, dtype, shape, strides, bytes, over, updated,
                                   bits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Matrix, dtype, offset, batch_stride, row_stride, column_stride)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Product, batch, m, n, k, lhs, rhs, result, tf32, bias, addend, sums_of, algorithm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Step, kind, name, arguments, reads, writes, kernel, parallel_extent, target,
                                   arguments_json, aliases, random, may_draw, p, increment, product, shifts, token,
                                   seconds, guard, guard_value, flops, bytes, origins)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ForeachInput, scalar, written, dtype)

static void to_json(nlohmann::json& j, const Kernel& k) {
  j = {{"name", k.name},
       {"code", nlohmann::json::binary(k.code)},
       {"entry", k.entry},
       {"scratch_bytes", k.scratch_bytes},
       {"threads", k.threads}};
}
static void from_json(const nlohmann::json& j, Kernel& k) {
  j.at("name").get_to(k.name);
  k.code = j.at("code").get_binary();
  j.at("entry").get_to(k.entry);
  j.at("scratch_bytes").get_to(k.scratch_bytes);
  j.at("threads").get_to(k.threads);
}

namespace {

using Magic = char[8];
constexpr Magic kPlan = {'t', 'r', 'a', 'i', 'n', 'c', 'P', 'L'}, kForeach = {'t', 'r', 'a', 'i', 'n', 'c', 'F', 'E'};
constexpr uint32_t kVersion = 15;
struct Header {
  char magic[8];
  uint64_t version, length, checksum;
};

// FNV-1a: each byte enters by a bijection of the state, so that one changed byte always changes the result.
uint64_t checksum(std::string_view bytes) {
  uint64_t h = 14695981039346656037u;
  for (unsigned char c : bytes) h = (h ^ c) * 1099511628211u;
  return h;
}

bool is_dtype(DType d) { return name_of(d) != "?"; }
void check_enums(const Plan& plan) {  // nlohmann-json takes any number for an enum
  for (const Buffer& b : plan.buffers)
    if (b.space > MemorySpace::Draw || !is_dtype(b.dtype)) throw UserError("stored plan: unknown kind of buffer");
  for (const Step& s : plan.steps)
    if (s.kind > StepKind::Wait || s.product.sums_of > SumsOf::Rhs ||
        !is_dtype(std::max({s.product.lhs.dtype, s.product.rhs.dtype, s.product.result.dtype})))
      throw UserError("stored plan: unknown kind of step");
}

std::string packed(const Magic& magic, const nlohmann::json& j) {
  std::string body;
  nlohmann::json::to_cbor(j, body);
  Header header{{}, kVersion, body.size(), checksum(body)};
  std::memcpy(header.magic, magic, sizeof magic);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

/// `read(json)` of what was packed; whatever is wrong with it is a UserError.
template <class Read> auto unpacked(const Magic& magic, std::string_view bytes, const Read& read) {
  Header header;
  if (bytes.size() < sizeof header) throw UserError("stored plan: truncated");
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view body = bytes.substr(sizeof header);
  if (std::memcmp(header.magic, magic, sizeof magic) != 0) throw UserError("stored plan: this is not a trainc plan");
  if (header.version != kVersion)
    throw UserError("stored plan: written by another version of trainc; compile it again");
  if (header.length != body.size()) throw UserError("stored plan: truncated");
  if (header.checksum != checksum(body)) throw UserError("stored plan: damaged (its checksum does not match)");
  if (!is_flat_cbor(body)) throw UserError("stored plan: not readable: it is not written as trainc writes");
  try {
    return read(nlohmann::json::from_cbor(body));
  } catch (const nlohmann::json::exception& e) {
    throw UserError(std::string("stored plan: not readable: ") + e.what());
  } catch (const InternalError& e) { throw UserError(std::string("stored plan: not sound: ") + e.what()); }
}

}  // namespace

std::string code_hash(const Kernel& kernel) {
  const std::string_view code(reinterpret_cast<const char*>(kernel.code.data()), kernel.code.size());
  return fmt::format("{:016x}", checksum(code));
}

std::string save(const Plan& plan) {
  auto bodies = nlohmann::json::array();
  for (const std::vector<uint8_t>& body : plan.bodies) bodies.push_back(nlohmann::json::binary(body));
  return packed(kPlan, {{"name", plan.name},
                        {"device", plan.device},
                        {"cpu", plan.cpu},
                        {"buffers", plan.buffers},
                        {"kernels", plan.kernels},
                        {"steps", plan.steps},
                        {"constants", nlohmann::json::binary(plan.constants)},
                        {"bodies", bodies},
                        {"input_count", plan.input_count},
                        {"output_count", plan.output_count},
                        {"outputs", plan.outputs},
                        {"temp_bytes", plan.temp_bytes},
                        {"saved_bytes", plan.saved_bytes},
                        {"overwrites_saved", plan.overwrites_saved},
                        {"notes", plan.notes},
                        {"remarks", plan.remarks}});
}

std::string save(const Foreach& f) {
  return packed(kForeach, {{"name", f.name},
                           {"device", f.device},
                           {"cpu", f.cpu},
                           {"kernel", f.kernel},
                           {"inputs", f.inputs},
                           {"chunk", f.chunk},
                           {"origins", f.origins}});
}

Plan load(std::string_view bytes) {
  return unpacked(kPlan, bytes, [](const nlohmann::json& j) {
    Plan plan;
    j.at("name").get_to(plan.name);
    j.at("device").get_to(plan.device);
    j.at("cpu").get_to(plan.cpu);
    j.at("buffers").get_to(plan.buffers);
    j.at("kernels").get_to(plan.kernels);
    j.at("steps").get_to(plan.steps);
    plan.constants = j.at("constants").get_binary();
    for (const nlohmann::json& body : j.at("bodies")) plan.bodies.emplace_back(body.get_binary());
    j.at("input_count").get_to(plan.input_count);
    j.at("output_count").get_to(plan.output_count);
    j.at("outputs").get_to(plan.outputs);
    j.at("temp_bytes").get_to(plan.temp_bytes);
    j.at("saved_bytes").get_to(plan.saved_bytes);
    j.at("overwrites_saved").get_to(plan.overwrites_saved);
    j.at("notes").get_to(plan.notes);
    j.at("remarks").get_to(plan.remarks);
    check_enums(plan);
    verify(plan);
    return plan;
  });
}

Foreach load_foreach(std::string_view bytes) {
  return unpacked(kForeach, bytes, [](const nlohmann::json& j) {
    Foreach f;
    j.at("name").get_to(f.name);
    j.at("device").get_to(f.device);
    j.at("cpu").get_to(f.cpu);
    j.at("kernel").get_to(f.kernel);
    j.at("inputs").get_to(f.inputs);
    j.at("chunk").get_to(f.chunk);
    j.at("origins").get_to(f.origins);
    require(f.chunk > 0 && f.kernel.entry >= 0 && f.kernel.entry < static_cast<int64_t>(f.kernel.code.size()) &&
                f.kernel.scratch_bytes >= 0,
            "foreach " + f.name + ": its kernel has no code, or its chunks no elements");
    for (const ForeachInput& i : f.inputs) require(is_dtype(i.dtype), "foreach " + f.name + ": unknown dtype");
    return f;
  });
}

}  // namespace trainc::plan
