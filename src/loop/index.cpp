#include "loop/index.h"

namespace trainc::loop {

const Expr& Index::linear() {
  if (!position) {
    const Dims strides = contiguous_strides(shape);
    position = integer(0);
    for (size_t k = 0; k < shape.size(); ++k)
      if (shape[k] != 1) position = position + axes[k] * strides[k];
  }
  return position;
}

const std::vector<Expr>& Index::coordinates() {
  if (axes.empty() && !shape.empty()) {
    const Dims strides = contiguous_strides(shape);
    bool first = true;  // the outermost axis that is not 1 needs no remainder
    for (size_t k = 0; k < shape.size(); ++k) {
      // stride 0: no elements, nobody comes here
      if (shape[k] <= 1 || strides[k] == 0) {
        axes.push_back(integer(0));
        continue;
      }
      Expr e = floor_div(position, strides[k]);
      axes.push_back(first ? e : mod(e, shape[k]));
      first = false;
    }
  }
  return axes;
}

}  // namespace trainc::loop
