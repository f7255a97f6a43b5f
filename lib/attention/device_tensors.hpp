// One KV head in a machine's memory: what every block kernel of this room reads.
#pragma once

#include <span>
#include <vector>

#include "core/machine.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Keys, values and queries of one head as the trace has them, float32, row-major. Read only after
/// construction, so that threads share it. The machine and the head must outlive it.
template <class M>
struct HeadTensors {
  HeadTensors(M& machine, const KvHead& from)
      : head(&from), k(upload(machine, from.k)), v(upload(machine, from.v)) {
    q.reserve(from.q.size());
    for (const Matrix& queries : from.q) {
      q.push_back(upload(machine, queries));
    }
    std::vector<const float*> begins;
    for (const Array<float, M>& queries : q) {
      begins.push_back(queries.data());
    }
    q_rows = {machine, std::span<const float* const>(begins)};
  }

  const KvHead* head;
  Array<float, M> k;               ///< [n, d]
  Array<float, M> v;               ///< [n, dv]
  std::vector<Array<float, M>> q;  ///< group x [nq, d]
  Array<const float*, M> q_rows;   ///< [group]: where each of q begins

 private:
  static Array<float, M> upload(M& machine, const Matrix& m) {
    return {machine,
            std::span<const float>(m.data(), static_cast<std::size_t>(m.rows() * m.cols()))};
  }
};

}  // namespace kvbench
