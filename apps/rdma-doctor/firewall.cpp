#include "rdma-doctor/firewall.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace rdma_doctor {

namespace {

// Source: libnftables-json(5).
using nlohmann::json;

constexpr int roce_port = 4791;

enum class answer { no, unknown, yes };

answer from(bool is) { return is ? answer::yes : answer::no; }
answer opposite(answer a) { return a == answer::unknown ? a : from(a == answer::no); }

// What can happen to a packet in a chain: a set of these bits. More than one bit if a condition that
// is not known decides.
enum outcome : unsigned { accepted = 1, rejected = 2, next_rule = 4, end_of_chain = 8 };

std::string text(json const& object, char const* key) {
    auto const at = object.is_object() ? object.find(key) : object.end();
    return at != object.end() && at->is_string() ? at->get<std::string>() : std::string{};
}

bool is_inbound(std::string const& hook) {
    return hook == "ingress" || hook == "prerouting" || hook == "input";
}

class ruleset {
public:
    ruleset(json const& objects, roce_packets const& packets)
        : objects_{objects},
          packets_{packets} {}

    std::optional<dropped> dropping_chain() {
        for (json const& object : objects_) {
            auto const at = object.find("chain");
            if (at == object.end()) continue;
            json const& chain = *at;
            if (!is_on_the_way(chain)) continue;
            is_inbound_ = is_inbound(text(chain, "hook"));
            table_ = {text(chain, "family"), text(chain, "table")};
            unsigned all = outcomes(text(chain, "name"), 0);
            if ((all & next_rule) != 0) {
                all &= ~next_rule;
                all |= text(chain, "policy") == "drop" ? rejected : accepted;
            }
            if (all == rejected) return dropped_by(chain);
        }
        return std::nullopt;
    }

private:
    struct table_name {
        std::string family;
        std::string name;
    };

    bool is_of_table(json const& object) const {
        return text(object, "family") == table_.family && text(object, "table") == table_.name;
    }

    bool is_on_the_way(json const& chain) const {
        std::string const family = text(chain, "family");
        std::string const hook = text(chain, "hook");
        if (family == "netdev") return hook == "ingress" && text(chain, "dev") == packets_.netdev;
        bool const is_ours = family == "inet" || family == (packets_.is_ipv6 ? "ip6" : "ip");
        return is_ours && text(chain, "type") != "nat" &&
               (hook == "prerouting" || hook == "input" || hook == "output" || hook == "postrouting"
               );
    }

    // The kernel permits 16 jumps; a set of rules that has more is unknown.
    unsigned outcomes(std::string const& chain, int depth) {
        if (depth > 16) return accepted | rejected | next_rule;
        unsigned all = 0;
        for (json const& object : objects_) {
            auto const at = object.find("rule");
            if (at == object.end() || !is_of_table(*at) || text(*at, "chain") != chain) continue;
            unsigned const here = rule((*at).value("expr", json::array()), depth);
            all |= here & (accepted | rejected);
            if ((here & end_of_chain) != 0) all |= next_rule;
            if ((here & next_rule) == 0) return all;
        }
        return all | next_rule;
    }

    unsigned rule(json const& statements, int depth) {
        bool is_certain = true;
        for (json const& statement : statements) {
            if (!statement.is_object() || statement.empty()) continue;
            std::string const kind = statement.begin().key();
            json const& value = statement.begin().value();
            answer matches = answer::yes;
            if (kind == "match") {
                matches = match(value);
            } else if (kind == "limit") {
                matches = answer::unknown;
            } else if (kind == "xt" && text(value, "type") == "match") {
                matches = extension(text(value, "name"));
            } else if (unsigned const verdict = this->verdict(kind, value, depth);
                       verdict != next_rule) {
                return is_certain ? verdict : verdict | next_rule;
            }
            if (matches == answer::no) return next_rule;
            is_certain = is_certain && matches == answer::yes;
        }
        return next_rule;
    }

    // Of iptables, which nft does not show in full. The usual rule with conntrack accepts packets of
    // established connections, to which these do not belong.
    static answer extension(std::string const& name) {
        return from_known(name == "conntrack" || name == "state", answer::no);
    }
    static answer from_known(bool is_known, answer then) {
        return is_known ? then : answer::unknown;
    }

    // next_rule for a statement that decides nothing, such as a counter.
    unsigned verdict(std::string const& kind, json const& value, int depth) {
        if (kind == "accept") return accepted;
        if (kind == "drop" || kind == "reject") return rejected;
        if (kind == "return") return end_of_chain;
        if (kind == "jump") return outcomes(text(value, "target"), depth + 1);
        if (kind == "goto") {
            unsigned const there = outcomes(text(value, "target"), depth + 1);
            return (there & ~next_rule) | ((there & next_rule) != 0 ? end_of_chain : 0U);
        }
        if (kind == "vmap") return verdict_map(value, depth);
        if (kind == "queue") return accepted | rejected;
        if (kind != "xt" || text(value, "type") != "target") return next_rule;
        std::string const target = text(value, "name");
        if (target == "REJECT" || target == "DROP") return rejected;
        bool const decides_nothing =
            target == "LOG" || target == "NFLOG" || target == "MARK" || target == "CONNMARK";
        return decides_nothing ? next_rule : accepted | rejected | next_rule;
    }

    unsigned verdict_map(json const& map, int depth) {
        if (!map.is_object() || !map.contains("key") || !map.contains("data"))
            return accepted | rejected | next_rule;
        json const* const elements = elements_of(map["data"]);
        if (elements == nullptr) return accepted | rejected | next_rule;
        unsigned all = 0;
        for (json const& element : *elements) {
            if (!element.is_array() || element.size() != 2) continue;
            answer const matches = compare(map["key"], element[0]);
            if (matches == answer::no) continue;
            json const& then = element[1];
            if (then.is_object() && !then.empty())
                all |= verdict(then.begin().key(), then.begin().value(), depth);
            if (matches == answer::yes) return all;
        }
        return all | next_rule;
    }

    // The elements of a set: listed, or of a set with a name ("@ports"); null if it is neither.
    json const* elements_of(json const& set) const {
        if (set.is_object() && set.contains("set")) return &set["set"];
        if (!set.is_string() || !set.get<std::string>().starts_with('@')) return nullptr;
        static json const empty = json::array();
        for (json const& object : objects_) {
            for (char const* const kind : {"set", "map"}) {
                auto const at = object.find(kind);
                if (at == object.end() || !is_of_table(*at) ||
                    "@" + text(*at, "name") != set.get<std::string>())
                    continue;
                return at->contains("elem") ? &(*at)["elem"] : &empty;
            }
        }
        return nullptr;
    }

    answer match(json const& m) const {
        if (!m.is_object() || !m.contains("left") || !m.contains("right")) return answer::unknown;
        std::string const op = text(m, "op");
        if (op == "==" || op == "in") return compare(m["left"], m["right"]);
        if (op == "!=") return opposite(compare(m["left"], m["right"]));
        return answer::unknown;
    }

    // Whether a field of the packets has a value, or one of several.
    answer compare(json const& field, json const& value) const {
        json const* elements = value.is_array() ? &value : elements_of(value);
        if (elements != nullptr) {
            answer any = answer::no;
            for (json const& element : *elements) any = std::max(any, compare(field, element));
            return any;
        }
        if (value.is_object() && value.contains("elem"))
            return compare(field, value["elem"].value("val", json{}));
        if (!field.is_object() || field.empty()) return answer::unknown;
        std::string const kind = field.begin().key();
        json const& about = field.begin().value();
        if (kind == "payload") return payload(about, value);
        if (kind == "meta") return meta(text(about, "key"), value);
        if (kind == "ct") {
            std::string const key = text(about, "key");
            if (key == "state") return from(value == "new");
            // Addresses are not translated.
            if (key == "status") return from_known(value == "dnat" || value == "snat", answer::no);
        }
        return answer::unknown;
    }

    answer payload(json const& about, json const& value) const {
        std::string const protocol = text(about, "protocol");
        std::string const field = text(about, "field");
        if (protocol == "udp" || protocol == "th")
            return field == "dport" ? is_port(value) : answer::unknown;
        if (protocol == "ip" || protocol == "ip6") {
            if ((protocol == "ip6") != packets_.is_ipv6) return answer::no;
            bool const is_protocol = field == "protocol" || field == "nexthdr";
            return is_protocol ? is_udp(value) : answer::unknown;
        }
        // These are in no UDP packet.
        for (char const* const other :
             {"tcp", "icmp", "icmpv6", "igmp", "sctp", "dccp", "esp", "ah"})
            if (protocol == other) return answer::no;
        return answer::unknown;
    }

    answer meta(std::string const& key, json const& value) const {
        if (key == "l4proto") return is_udp(value);
        if (key == "nfproto") return from(value == (packets_.is_ipv6 ? "ipv6" : "ipv4"));
        if (key == "protocol") return from(value == (packets_.is_ipv6 ? "ip6" : "ip"));
        if (is_inbound_ ? key == "iif" || key == "iifname" : key == "oif" || key == "oifname")
            return is_netdev(value);
        return answer::unknown;
    }

    static answer is_udp(json const& value) { return from(value == "udp" || value == 17); }

    static answer is_port(json const& value) {
        if (value.is_number_integer()) return from(value == roce_port);
        if (!value.is_object() || !value.contains("range")) return answer::unknown;
        json const& range = value["range"];
        if (!range.is_array() || range.size() != 2) return answer::unknown;
        if (!range[0].is_number_integer() || !range[1].is_number_integer()) return answer::unknown;
        return from(range[0] <= roce_port && range[1] >= roce_port);
    }

    answer is_netdev(json const& value) const {
        if (!value.is_string()) return answer::unknown;
        auto const name = value.get<std::string>();
        if (name.ends_with('*'))
            return from(
                packets_.netdev.starts_with(std::string_view{name}.substr(0, name.size() - 1))
            );
        return from(name == packets_.netdev);
    }

    // The command of the program whose chain it is: others are overwritten by it.
    static dropped dropped_by(json const& chain) {
        std::string const family = text(chain, "family");
        std::string const table = text(chain, "table");
        std::string const name = text(chain, "name");
        std::string const where = family + ' ' + table + ' ' + name;
        if (table == "firewalld") return {where, "firewall-cmd --add-port=4791/udp"};
        bool const is_iptables =
            (family == "ip" || family == "ip6") &&
            (name == "INPUT" || name == "OUTPUT" || name == "PREROUTING" || name == "POSTROUTING");
        if (is_iptables) {
            std::string const program = family == "ip" ? "iptables" : "ip6tables";
            return {
                where, program + " -t " + table + " -I " + name + " -p udp --dport 4791 -j ACCEPT"};
        }
        return {where, "nft insert rule " + where + " udp dport 4791 accept"};
    }

    json const& objects_;
    roce_packets packets_;
    table_name table_;
    bool is_inbound_ = true;
};

}  // namespace

std::optional<dropped> dropping_chain(std::string const& rules, roce_packets const& packets) {
    json const all = json::parse(rules, nullptr, false);
    if (!all.is_object() || !all.contains("nftables")) return std::nullopt;
    return ruleset{all["nftables"], packets}.dropping_chain();
}

}  // namespace rdma_doctor
