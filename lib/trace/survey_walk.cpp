#include "trace/survey_walk.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "trace/hdf5_util.hpp"
#include "trace/survey_dataset.hpp"

namespace kvbench::h5 {

namespace {

// HDF5 1.12 gave the old name to another struct.
#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
using LinkInfo = H5L_info2_t;
#else
using ObjectInfo = H5O_info_t;
using LinkInfo = H5L_info_t;
#endif

// A trace has far fewer links in a group.
constexpr std::size_t kMaxLinks = 1000000;
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

// Writes all of `answer` and empties it.
void flush(Bytes& answer, int to) {
  for (std::size_t done = 0; done < answer.size();) {
    const ssize_t put = ::write(to, answer.data() + done, answer.size() - done);
    if (put < 0 && errno != EINTR) {
      ::_exit(1);  // nobody reads
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(put, 0));
  }
  answer.clear();
}

struct Names {
  const std::vector<std::string_view>* wanted = nullptr;  // null: all
  std::vector<std::string> found;
};

herr_t collect(const char* name, void* out) {
  // No exception may pass through HDF5.
  try {
    auto& names = *static_cast<Names*>(out);
    if (names.wanted == nullptr || std::ranges::count(*names.wanted, name) > 0) {
      names.found.emplace_back(name);
    }
    return names.found.size() > kMaxLinks ? -1 : 0;
  } catch (...) {
    return -1;
  }
}

herr_t collect_link(hid_t /*group*/, const char* name, const LinkInfo* /*info*/, void* out) {
  return collect(name, out);
}

herr_t collect_attribute(hid_t /*object*/, const char* name, const H5A_info_t* /*info*/,
                         void* out) {
  return collect(name, out);
}

class Walk {
 public:
  // Writes nodes to `to`, and leaves the last ones in `answer`.
  Walk(const Request& request, Bytes& answer, int to)
      : wanted_(request.attributes), answer_(answer), to_(to) {
    for (const std::string_view path : request.paths) {
      auto& steps = paths_.emplace_back();
      for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find('/', at), path.size());
        steps.push_back(path.substr(at, end - at));
        at = end + 1;
      }
    }
  }

  void run(hid_t root) {
    visit(root, paths_.empty() ? 0 : ~std::uint64_t{0} >> (64 - paths_.size()), 0);
  }

 private:
  // The paths of the request that lead on from an object: bit i for the i-th.
  using Live = std::uint64_t;

  // Returns the number of an object, which is surveyed at its first visit.
  std::uint32_t visit(hid_t object, Live live, std::size_t depth) {
    begin_step();
    ObjectInfo info{};
    if (H5Oget_info2(object, &info, H5O_INFO_BASIC | H5O_INFO_NUM_ATTRS) < 0) {
      throw std::runtime_error(last_error());
    }
    const std::tuple key{info.addr, live, depth};
    if (const auto known = seen_.find(key); known != seen_.end()) {
      return known->second;
    }
    Node node;
    if (info.num_attrs > 0) {
      node.attributes = attributes(object);
    }
    if (info.type == H5O_TYPE_GROUP) {
      node.kind = Node::Kind::group;
      way_.push_back(info.addr);
      node.links = links(object, live, depth);
      way_.pop_back();
    } else if (info.type == H5O_TYPE_DATASET) {
      node.kind = Node::Kind::dataset;
      for (Live l = live; l != 0 && node.dataset.empty(); l &= l - 1) {
        if (path_of(l).size() == depth) {
          node.dataset.push_back(survey_dataset(object));
        }
      }
    }
    append_node(answer_, node);
    if (answer_.size() >= kBufferBytes) {
      flush(answer_, to_);
    }
    return seen_[key] = static_cast<std::uint32_t>(seen_.size());
  }

  // The first of some live paths, as its steps.
  const std::vector<std::string_view>& path_of(Live live) const {
    return paths_[static_cast<std::size_t>(std::countr_zero(live))];
  }

  std::vector<Attribute> attributes(hid_t object) const {
    Names names{&wanted_, {}};
    hsize_t at = 0;
    std::vector<Attribute> out;
    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_attribute, &names) < 0) {
      // Any of the wanted attributes may be there.
      for (const std::string_view name : wanted_) {
        out.emplace_back().name = name;
        out.back().fault = last_error();
      }
      return out;
    }
    for (const std::string& name : names.found) {
      out.push_back(survey_attribute(object, name));
    }
    return out;
  }

  std::vector<Link> links(hid_t group, Live live, std::size_t depth) {
    std::map<std::string, Live> next;
    Live any = 0;
    for (Live l = live; l != 0; l &= l - 1) {
      const Live bit = l & -l;
      if (depth == path_of(l).size()) {
        continue;
      }
      const std::string_view step = path_of(l)[depth];
      if (step == "*") {
        any |= bit;
      } else if (has_link(group, step)) {
        next[std::string(step)] |= bit;
      }
    }
    if (any != 0) {
      Names names;
      hsize_t at = 0;
      if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_link, &names) < 0) {
        throw std::runtime_error("the members of a group cannot be listed: " + last_error());
      }
      for (const std::string& name : names.found) {
        next[name] |= any;
      }
    }
    std::vector<Link> out;
    for (const auto& [name, bits] : next) {
      out.push_back(follow(group, name, bits, depth + 1));
    }
    return out;
  }

  Link follow(hid_t group, const std::string& name, Live live, std::size_t depth) {
    Link link;
    link.name = name;
    LinkInfo info{};
    if (H5Lget_info(group, name.c_str(), &info, H5P_DEFAULT) < 0) {
      link.kind = Link::Kind::unreadable;
      link.fault = last_error();
      return link;
    }
    if (info.type != H5L_TYPE_HARD && info.type != H5L_TYPE_SOFT) {
      link.kind = Link::Kind::outside;
      return link;
    }
    const Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object) {
      link.kind = info.type == H5L_TYPE_SOFT ? Link::Kind::nowhere : Link::Kind::unreadable;
      link.fault = last_error();
      return link;
    }
    ObjectInfo about{};
    if (H5Oget_info2(object, &about, H5O_INFO_BASIC) < 0) {
      link.kind = Link::Kind::unreadable;
      link.fault = last_error();
    } else if (std::ranges::count(way_, about.addr) > 0) {
      link.kind = Link::Kind::ancestor;
    } else {
      link.node = visit(object, live, depth);
    }
    return link;
  }

  const std::vector<std::string_view>& wanted_;
  Bytes& answer_;
  int to_;
  std::vector<std::vector<std::string_view>> paths_;
  std::vector<haddr_t> way_;  // groups from the root to here
  std::map<std::tuple<haddr_t, Live, std::size_t>, std::uint32_t> seen_;
};

}  // namespace

void survey_and_exit(const InputFile& input, const Request& request, std::chrono::microseconds step,
                     int to) noexcept {
  try {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    limit_steps(step);
    Bytes answer;
    try {
      const Handle access = survey_access(input);
      const Handle file(H5Fopen(input.path().c_str(), H5F_ACC_RDONLY, access), H5Fclose);
      const Handle root(file ? H5Gopen2(file, "/", H5P_DEFAULT) : -1, H5Gclose);
      if (!root) {
        throw std::runtime_error(last_error());
      }
      Walk(request, answer, to).run(root);
      append_end(answer);
      flush(answer, to);
      ::_exit(0);  // without closing the file
    } catch (const std::exception& e) {
      append_failure(answer, e.what());
    }
    flush(answer, to);
    ::_exit(0);
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace kvbench::h5
