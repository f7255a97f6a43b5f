// Compositions of the retrieval protocol: A+R, where every query reads what the prefill method A
// keeps and its own tokens of the rest by R; and R@Q, where R reads a middle that the quantizer Q
// holds in fewer bits. The parts do not know of it.
#pragma once

#include <memory>

#include "algorithms/contract.hpp"

namespace kvbench {

/// Whether it runs under retrieval and not under prefill: the R of A+R and R@Q.
bool only_retrieves(const Method& m);

/// Bytes that a query reads for one of the entries, at least one: an equal part of all, rounded up.
Index coded_token_bytes(const CodedEntries& coded);

/// A+R. Parameters are those of a composition (algorithms/composition.hpp): A gets `share` of the
/// bytes that a query reads, R the rest.
std::unique_ptr<ReadIndex> compose_reads(const Method& a, const Method& r, const Task& task,
                                         const Params& params);

/// Parameters of R@Q: R's sizes, Q's format, and R's others prefixed "NAME.". Throws InputError if
/// Q is not a quantizer or R reads a fixed set.
std::vector<ParamSpec> coded_reads_params(const Method& r, const Method& q,
                                          const std::map<std::string, std::string>& given = {});

/// R@Q. The index sees the keys as they were, attention the entries as they are held. A token costs
/// the middle's coded bytes divided by its tokens, rounded up.
std::unique_ptr<ReadIndex> code_reads(const Method& r, const Method& q, const Task& task,
                                      const Params& params);

}  // namespace kvbench
