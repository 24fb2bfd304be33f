#include "compiler/options.h"

#include <nlohmann/json.hpp>

#include "support/error.h"

namespace trainc::compiler {
namespace {

using nlohmann::json;

/// Takes fields out of an object; what is left over was not known.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : object_(json::parse(text, nullptr, false)) {
    require(object_.is_object(), "compile options are no JSON object");
  }
  template <class T> T take(const char* name) {
    const auto it = object_.find(name);
    if (it == object_.end()) throw InternalError(std::string("compile options lack ") + name);
    const T value = it->get<T>();
    object_.erase(it);
    return value;
  }
  void finish() const {
    if (!object_.empty())
      throw InternalError("compile options have " + object_.begin().key() + ", which the compiler does not know");
  }

 private:
  json object_;
};

}  // namespace

CompileOptions options_of(std::string_view text) {
  FieldReader f(text);
  CompileOptions o;
  const auto level = cpu_level_of(f.take<std::string>("cpu"));
  const CacheSizes caches = {.l1d = f.take<int64_t>("l1d"),
                             .l2 = f.take<int64_t>("l2"),
                             .l3 = f.take<int64_t>("l3"),
                             .cores = f.take<int>("cores")};
  o.target = target_of(f.take<std::string>("device"), level, caches);
  o.vendor_product_flops = f.take<int64_t>("vendor_product_flops");
  o.tf32 = f.take<bool>("tf32");
  o.float32_in_parts = f.take<bool>("float32_in_parts");
  o.loss_chunk_rows = f.take<int64_t>("loss_chunk_rows");
  o.loss_chunk_bytes = f.take<int64_t>("loss_chunk_bytes");
  o.skip_hidden_flops = f.take<int64_t>("skip_hidden_flops");
  o.skip_padding = f.take<bool>("skip_padding");
  o.workers = f.take<int>("workers");
  o.generator = mask_generator_of(f.take<std::string>("generator"));
  o.flushes_denormals = f.take<bool>("flushes_denormals");
  o.disabled_passes = f.take<std::vector<std::string>>("disabled_passes");
  f.finish();
  return o;
}

}  // namespace trainc::compiler
