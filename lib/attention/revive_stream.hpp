// A stream with revival (streams/revival.hpp) on one KV head, step by step.
#pragma once

#include <memory>
#include <span>

#include "core/types.hpp"
#include "streams/revival.hpp"

namespace kvbench {

/// What a stream is opened with.
struct ReviveTask {
  ReviveRules rules;
  std::span<const SketchHash> hashes;  ///< one per row of the sketch, 1 .. kMaxSketchRows
  Index cells = 1;                     ///< per row, >= 1
  DType dtype = DType::float32;        ///< of the cells' elements
  CellEstimate estimate = CellEstimate::sum;
  /// All of them. A device decides them at once, the CPU one by one: it does not read them here.
  std::span<const ReviveStep> steps;

  /// Without memory; `head` and `hashes` must outlive it. T: element type of the head's precision.
  template <class T>
  ReviveState<T> state(const KvHead& head) const;
};

extern template ReviveState<float> ReviveTask::state(const KvHead&) const;
extern template ReviveState<double> ReviveTask::state(const KvHead&) const;

class ReviveStream {
 public:
  virtual ~ReviveStream() = default;

  /// The next of the task's steps: its moves, in the order in which they happen, until the next
  /// call.
  virtual std::span<const ReviveMove> step(const ReviveStep& step) = 0;

  /// [n]: on the CPU after the steps so far, on a device after the last.
  virtual std::span<const float> scores() const = 0;
};

/// Bytes that it holds for n positions of width d and a sketch of `rows` rows of `cells` cells.
Index revival_bytes(Precision precision, Index n, Index d, Index group, Index rows, Index cells);

/// On the CPU, in the head's precision. `head` and the task's hashes must outlive it.
std::unique_ptr<ReviveStream> open_revival(const KvHead& head, const ReviveTask& task);

}  // namespace kvbench
