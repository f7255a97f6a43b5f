// The error of a selection of your own, here the newest quarter of the middle: docs/extending.md.
#include <cstdio>
#include <kvbench/attention/estimator.hpp>
#include <kvbench/attention/truth.hpp>
#include <kvbench/attention/value_norms.hpp>
#include <kvbench/core/error.hpp>
#include <kvbench/metrics/error.hpp>
#include <kvbench/trace/reader.hpp>
#include <numeric>
#include <vector>

using kvbench::Index;

namespace {

std::vector<Index> positions(Index begin, Index end) {
  std::vector<Index> out(end - begin);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// rel_error of query head g of the group when only `tokens` are left of the middle.
double error_of(const kvbench::KvHead& head, Index g, const std::vector<Index>& tokens, Index sink,
                Index recent, Index queries) {
  const kvbench::MatrixD q = kvbench::scaled_queries(head, g, queries);
  kvbench::SoftmaxSums sums(q, head.dv(), head.precision);
  for (const auto& kept : {positions(0, sink), positions(head.n() - recent, head.n()), tokens}) {
    sums.add(kvbench::causal_rows(head, kept, queries));
  }
  return kvbench::error_figures(kvbench::exact_attention(head, g, queries, /*threads=*/1),
                                kvbench::value_norms(head, queries, /*threads=*/1), sums.output(),
                                sums.log_denominator())
      .rel_error;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: own_method TRACE\n", stderr);
    return 2;
  }
  try {
    const kvbench::TraceReader reader(argv[1]);
    kvbench::KvHead head = reader.read_head(/*prompt=*/0, /*layer=*/0, /*kv_head=*/0);
    head.precision = kvbench::Precision::float32;  // as the command line does by default
    const Index sink = 16, recent = 512, queries = 256;
    const Index middle_end = head.n() - recent;
    const Index kept = (middle_end - sink) / 4;
    for (Index g = 0; g < head.group(); ++g) {
      std::printf(
          "%lld %lld %.17g\n", static_cast<long long>(reader.meta().prompts[0].layers[0].layer),
          static_cast<long long>(g),
          error_of(head, g, positions(middle_end - kept, middle_end), sink, recent, queries));
    }
  } catch (const kvbench::Error& error) {
    std::fprintf(stderr, "own_method: %s\n", error.what());
    return 2;
  }
}
