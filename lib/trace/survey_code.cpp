#include "trace/survey_code.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace kvbench::h5 {

namespace {

// Whether a converter (trace/element_convert.hpp) reads as many bytes as the element claims to
// have.
bool has_its_size(const Element& e) {
  const bool is_real = e.kind == Element::Kind::real;
  if (!is_real && e.kind != Element::Kind::integer && e.kind != Element::Kind::natural) {
    return false;
  }
  return e.bytes == 2 || e.bytes == 4 || e.bytes == 8 || (e.bytes == 1 && !is_real);
}

void measure_chunks(Dataset& d) {
  for (const Chunk& c : d.chunks) {
    std::uint64_t end = 0;
    if (c.bytes > 0 && __builtin_add_overflow(c.address, c.bytes, &end)) {
      end = kNowhere;
    }
    d.stored += c.bytes;  // at most a million times 32 bits, or as many as the answer has room for
    d.end = std::max(d.end, end);
  }
}

}  // namespace

std::vector<std::uint8_t> encode_survey(Survey& survey) {
  Encoder to;
  for (Node& node : survey.nodes) {
    Record kind = Record::node;
    to(kind, node);
  }
  Record end = Record::end;
  to(end);
  return std::move(to.bytes);
}

Survey decode_survey(std::span<const std::uint8_t> answer) {
  Decoder from(answer);
  Survey out;
  for (;;) {
    Record kind{};
    from(kind);
    if (kind == Record::end) {
      break;
    }
    if (kind == Record::failure) {
      std::string what;
      from(what);
      throw std::runtime_error(what);
    }
    Node node;
    from(node);
    for (const Link& link : node.links) {
      if (link.kind == Link::Kind::object && link.node >= out.nodes.size()) {
        throw std::runtime_error("leads to an object that is not there");
      }
    }
    if (std::ranges::adjacent_find(node.links, std::ranges::greater_equal(), &Link::name) !=
        node.links.end()) {
      throw std::runtime_error("has names out of order");
    }
    for (Dataset& d : node.dataset) {
      if (d.element.standard && !has_its_size(d.element)) {
        throw std::runtime_error("has a standard element of another size");
      }
      measure_chunks(d);
    }
    out.nodes.push_back(std::move(node));
  }
  if (out.nodes.empty() || !from.done()) {
    throw std::runtime_error("has no end where it is expected");
  }
  return out;
}

}  // namespace kvbench::h5
