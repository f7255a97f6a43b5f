#include "algorithms/shared/pooled_budget.hpp"

#include <algorithm>
#include <tuple>

#include "core/error.hpp"

namespace kvbench {
namespace {

struct Competitor {
  double score;
  double position;
  std::size_t survey;
};

}  // namespace

Survey competing(const Task& task, Index tokens, std::vector<double> scores) {
  Survey out{tokens, std::move(scores)};
  out.data.insert(out.data.end(), task.tokens.begin(), task.tokens.end());
  return out;
}

std::vector<Share> pooled_shares(std::span<const Survey> surveys,
                                 const std::function<Index(Index tokens)>& safe) {
  const auto place = [&](const Competitor& c) {
    return std::tuple{-c.score, c.position, surveys[c.survey].kv_head, surveys[c.survey].layer};
  };
  const auto better = [&](const Competitor& a, const Competitor& b) { return place(a) < place(b); };
  std::vector<Share> out(surveys.size());
  std::vector<Competitor> rest;
  Index left = 0;
  for (std::size_t h = 0; h < surveys.size(); ++h) {
    const Survey& s = surveys[h];
    const auto m = static_cast<std::size_t>(s.middle);
    std::vector<Competitor> own;
    for (std::size_t i = 0; i < m; ++i) {
      own.push_back({s.data[i], s.data[m + i], h});
    }
    std::sort(own.begin(), own.end(), better);
    out[h].tokens = safe(s.tokens);
    left += s.tokens - out[h].tokens;
    rest.insert(rest.end(), own.begin() + out[h].tokens, own.end());
  }
  std::nth_element(rest.begin(), rest.begin() + left, rest.end(), better);
  for (Index i = 0; i < left; ++i) {
    out[rest[i].survey].tokens += 1;
  }
  return out;
}

void require_one_shape(std::span<const Survey> surveys, const std::string& who) {
  for (const Survey& s : surveys) {
    if (s.pair_bytes != surveys.front().pair_bytes) {
      throw InputError(who + " heads of one shape and type");
    }
  }
}

}  // namespace kvbench
