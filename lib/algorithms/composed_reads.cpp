#include "algorithms/composed_reads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "algorithms/composition.hpp"
#include "algorithms/nested_methods.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/stored.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

class ComposedReads : public ReadIndex {
 public:
  ComposedReads(const Method& a, const Method& r, const Task& task, const Params& params)
      : a_(a), r_(r), kept_(keep_first(a, task, params)) {
    left_ = tokens_without(task.tokens, kept_.held.tokens);
    const Index bytes = composition_bytes(task, params) -
                        static_cast<Index>(kept_.held.tokens.size()) * task.head.pair_bytes() -
                        kept_.aux_bytes;
    if (!left_.empty()) {
      rest_ = r.open_reads(second_task(r, task, left_, bytes), part_params(r, params));
    }
  }

  Reads search() override {
    Reads out = rest_ == nullptr ? Reads() : rest_->search();
    Figures diag;
    add_part_diag(a_, kept_.diag, diag);
    add_part_diag(r_, out.diag, diag);
    out.diag = std::move(diag);
    for (Index& asked : out.asked) {
      asked += static_cast<Index>(kept_.held.tokens.size());
    }
    out.degenerate = kept_.degenerate.empty() ? out.degenerate : kept_.degenerate;
    out.fixed = std::move(kept_);
    return out;
  }

 private:
  const Method& a_;
  const Method& r_;
  Compressed kept_;
  std::vector<Index> left_;
  std::unique_ptr<ReadIndex> rest_;
};

class CodedReads : public ReadIndex {
 public:
  CodedReads(const Method& r, const Method& q, const Task& task, const Params& params)
      : r_(r), coded_(code(q, task, params)) {
    Task own = task;
    own.rng = task.rng.part(r.info.name);
    own.bytes_per_token = coded_token_bytes(coded_);
    index_ = r.open_reads(own, stored_part(r, params));
  }

  Reads search() override {
    Reads out = index_->search();
    Figures diag;
    add_part_diag(r_, out.diag, diag);
    diag.insert(diag.end(), coded_.diag.begin(), coded_.diag.end());
    out.diag = std::move(diag);
    out.coded = std::move(coded_);
    return out;
  }

 private:
  static CodedEntries code(const Method& q, const Task& task, const Params& params) {
    Task whole = task;
    whole.rng = task.rng.part(q.info.name);
    return q.quantizer->code(whole,
                             {copy_rows(task.head.k, task.tokens),
                              copy_rows(task.head.v, task.tokens),
                              {task.tokens.begin(), task.tokens.end()}},
                             params);
  }

  const Method& r_;
  CodedEntries coded_;
  std::unique_ptr<ReadIndex> index_;
};

}  // namespace

bool only_retrieves(const Method& m) {
  return m.compress == nullptr && m.open_reads != nullptr;
}

Index coded_token_bytes(const CodedEntries& coded) {
  return (coded.code_bytes + coded.scale_bytes + coded.k.rows() - 1) / coded.k.rows();
}

std::unique_ptr<ReadIndex> compose_reads(const Method& a, const Method& r, const Task& task,
                                         const Params& params) {
  return std::make_unique<ComposedReads>(a, r, task, params);
}

std::vector<ParamSpec> coded_reads_params(const Method& r, const Method& q,
                                          const std::map<std::string, std::string>& given) {
  check_quantizer(r, q);
  if (r.info.acts_as != nullptr || r.info.sizes.empty()) {
    throw InputError(
        fmt::format("{0}@{1}: {0} reads one set for all queries, expected a method "
                    "that searches, such as topk@{1}",
                    r.info.name, q.info.name));
  }
  return sized_params(r, q, given);
}

std::unique_ptr<ReadIndex> code_reads(const Method& r, const Method& q, const Task& task,
                                      const Params& params) {
  return std::make_unique<CodedReads>(r, q, task, params);
}

}  // namespace kvbench
