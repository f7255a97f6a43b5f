// CaM under prefill as a stream over the middle, every step from its definition: softmax over sinks
// and what is held, sums, the lightest goes, one draw, its value is shared out.
#pragma once

#include <map>
#include <vector>

#include "reference/kvreviver.hpp"
#include "reference/merging.hpp"

namespace reference {

struct CamReference {
  const kvbench::KvHead* head = nullptr;
  std::vector<Index> tokens;
  std::vector<bool> attends;  ///< by position: its query is there and may score
  Index sink = 0;
  Index kept = 0, heavy = 0, merge = 32;
  char reduce = 'm';  ///< m: mean, x: max, s: sum
  Element element;
  std::vector<double> draw;  ///< by position

  std::map<Index, Merged> held;  ///< after run(): what is left
  Index merged = 0;              ///< draws that succeeded

  void run();

 private:
  std::map<Index, Real> weights(Index j) const;
  void evict();
  std::map<Index, float> score_;
};

}  // namespace reference
