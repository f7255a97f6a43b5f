// Caches made by hand over the trace of ReplayTest, and runs that evaluate them.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache_runs.hpp"
#include "core/float16.hpp"
#include "core/sha256.hpp"
#include "trace/reader.hpp"

namespace kvbench::testing_caches {

// What a group holds of a head; nothing: it lacks the head.
using Make = std::function<std::optional<HeadCache>(const KvHead&, const CachePlace&)>;

struct Given {
  CacheGroup group;
  Make make;
};

inline CacheGroup named(const std::string& algorithm, std::optional<double> budget = {},
                        const std::string& scope = "head") {
  return {algorithm, algorithm, "", budget, 0, "none", scope};
}

inline constexpr Index kSink = 4, kRecent = 12, kQueries = 8;

// Tokens [begin, end) as they are.
inline HeadCache held(const KvHead& head, Index begin, Index end) {
  HeadCache c;
  c.k = Matrix(end - begin, head.d());
  c.v = Matrix(end - begin, head.dv());
  std::copy_n(head.k.row(begin), (end - begin) * head.d(), c.k.data());
  std::copy_n(head.v.row(begin), (end - begin) * head.dv(), c.v.data());
  for (Index t = begin; t < end; ++t) {
    c.token.push_back(static_cast<std::int32_t>(t));
  }
  return c;
}

class EvaluateTest : public CachesTest {
 protected:
  CachesMeta meta() const {
    return {{sha256_file(trace_)}, "prefill", kSink, kRecent, kQueries, ""};
  }

  void write(const std::vector<Given>& groups, const std::string& name = "c.h5") const {
    write(groups, name, meta());
  }
  void write(const std::vector<Given>& groups, const std::string& name, const CachesMeta& m) const {
    CacheWriter writer(at(name), m);
    const TraceReader reader(trace_);
    for (const Given& g : groups) {
      writer.begin_group(g.group);
      for (std::size_t p = 0; p < 2; ++p) {
        for (std::size_t l = 0; l < 2; ++l) {
          for (Index kv = 0; kv < 2; ++kv) {
            const CachePlace place{p == 0 ? "p0" : "p1", l == 0 ? 0 : 2, kv};
            if (const auto cache = g.make(reader.read_head(p, l, kv), place)) {
              writer.put(place, *cache, DType::float16);
            }
          }
        }
      }
    }
    writer.close();
  }

  ReplayOptions again(const std::string& out = "out.csv") const {
    ReplayOptions o = evaluation(out, {"c.h5"});
    o.precision = Precision::float64;  // slow references have no other
    return o;
  }
};

}  // namespace kvbench::testing_caches
