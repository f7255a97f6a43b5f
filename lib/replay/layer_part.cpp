#include "replay/layer_part.hpp"

namespace kvbench {

void add_layer_part(const HeadInput& c, Index q_head, const MatrixD& exact, const MatrixD& estimate,
                    LayerPart& part) {
  if (!c.plan().makes_layer_error(c.unit())) {
    return;
  }
  const Index m = exact.rows();
  const Index dv = exact.cols();
  const Index group = c.head().group();
  if (part.exact.rows() == 0) {
    part = {Matrix(m, group * dv), Matrix(m, group * dv)};
  }
  const Index first = (q_head - c.id().kv_head * group) * dv;
  for (Index j = 0; j < m; ++j) {
    for (Index t = 0; t < dv; ++t) {
      const double a = exact.row(j)[t];
      part.exact.row(j)[first + t] = static_cast<float>(a);
      part.differences.row(j)[first + t] = static_cast<float>(estimate.row(j)[t] - a);
    }
  }
}

}  // namespace kvbench
