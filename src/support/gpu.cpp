#include "support/gpu.h"

#include <string>

#include "support/error.h"

namespace trainc {

std::string_view name_of(Gpu gpu) {
  switch (gpu) {
#define X(name, text, multiprocessors) \
  case Gpu::name: return text;
    TRAINC_GPUS(X)
#undef X
  }
  return "?";
}

int multiprocessors(Gpu gpu) {
  switch (gpu) {
#define X(name, text, multiprocessors) \
  case Gpu::name: return multiprocessors;
    TRAINC_GPUS(X)
#undef X
  }
  return 1;
}

Gpu gpu_of(std::string_view text) {
  std::string known;
#define X(name, word, multiprocessors) \
  if (text == word) return Gpu::name;  \
  known += known.empty() ? word : std::string(", ") + word;
  TRAINC_GPUS(X)
#undef X
  throw UserError("no GPU architecture is called " + std::string(text) + "; there are " + known);
}

}  // namespace trainc
