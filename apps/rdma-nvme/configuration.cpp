#include "rdma-nvme/configuration.hpp"

#include <boost/uuid/string_generator.hpp>
#include <boost/uuid/uuid.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include <rcverbs/nvme/memory_store.hpp>

#include "common/json_number.hpp"
#include "rdma-nvme/server_stores.hpp"

namespace demo {

namespace nvme = rcverbs::nvme;
using nlohmann::json;

namespace {

// The library keeps one of two fields of the same name.
json parse_json(std::istream& in) {
    std::vector<std::set<std::string>> names;
    auto const check = [&names](int, json::parse_event_t what, json const& value) {
        if (what == json::parse_event_t::object_start) names.emplace_back();
        if (what == json::parse_event_t::object_end) names.pop_back();
        if (what == json::parse_event_t::key &&
            !names.back().insert(value.get<std::string>()).second)
            throw configuration_error{"an object has two fields " + value.dump()};
        return true;
    };
    return json::parse(in, check);
}

// Refuses fields that are unknown: they are misspelled.
void check_fields(
    json const& object, std::string const& where, std::initializer_list<char const*> known
) {
    if (!object.is_object()) throw configuration_error{where + " is not an object"};
    for (auto const& [name, value] : object.items()) {
        bool is_known = false;
        for (char const* const one : known) is_known = is_known || name == one;
        if (!is_known) throw configuration_error{where + " has the unknown field \"" + name + '"'};
    }
}

template <class T>
T field(json const& object, std::string const& where, char const* name, T otherwise) {
    try {
        return object.value(name, std::move(otherwise));
    } catch (json::exception const&) {
        throw configuration_error{where + ": \"" + name + "\" has the wrong type"};
    }
}

std::uint32_t field(
    json const& object, std::string const& where, char const* name, std::uint32_t otherwise
) {
    try {
        return object.contains(name) ? member<std::uint32_t>(object, name) : otherwise;
    } catch (std::invalid_argument const&) {
        throw configuration_error{
            where + ": \"" + name + "\" is not an integer from 0 to 4294967295"};
    }
}

json const& list(json const& object, std::string const& where, char const* name) {
    auto const found = object.find(name);
    if (found == object.end() || !found->is_array())
        throw configuration_error{where + ": \"" + name + "\" is not a list"};
    return *found;
}

// A list that says nothing if it is empty.
json const& filled_list(json const& object, std::string const& where, char const* name) {
    json const& found = list(object, where, name);
    if (found.empty())
        throw configuration_error{where + ": \"" + name + "\" is not a list of one or more"};
    return found;
}

std::array<std::byte, 16> parse_uuid(std::string const& text, std::string const& where) {
    try {
        boost::uuids::uuid const id = boost::uuids::string_generator{}(text);
        std::array<std::byte, 16> bytes{};
        std::memcpy(bytes.data(), id.data, bytes.size());
        return bytes;
    } catch (std::runtime_error const&) {
        throw configuration_error{where + ": \"uuid\" is not a UUID"};
    }
}

std::uint32_t parse_block_size(json const& from, std::string const& where) {
    std::uint32_t const bytes = field(from, where, "block_size", std::uint32_t{0});
    for (std::uint32_t const one : {512U, 1024U, 2048U, 4096U}) {
        if (bytes == one) return bytes;
    }
    throw configuration_error{where + ": \"block_size\" is none of 512, 1024, 2048 and 4096"};
}

// Where the bytes are, and what fits that.
void check_source(json const& from, std::string const& where) {
    auto const has = [&from](char const* name) {
        auto const at = from.find(name);
        return at != from.end() && (!at->is_string() || !at->get<std::string>().empty());
    };
    if (int{has("file")} + int{has("nbd")} + int{has("rbd")} + int{has("memory")} != 1)
        throw configuration_error{
            where + " needs one of \"file\", \"nbd\", \"rbd\" and \"memory\""};
    if (!has("nbd") && (from.contains("write_through") || from.contains("connections")))
        throw configuration_error{
            where + ": \"write_through\" and \"connections\" are for \"nbd\""};
    for (char const* const field : {"ceph_conf", "ceph_user", "keyring"}) {
        if (!has("rbd") && from.contains(field))
            throw configuration_error{where + ": \"" + field + "\" is for \"rbd\""};
    }
    for (char const* const server : {"nbd", "rbd"}) {
        if (has(server) &&
            (from.value("direct", false) || from.value("shared", false) || has("file_io")))
            throw configuration_error{
                where + R"(: "direct", "shared" and "file_io" are not for ")" + server + '"'};
    }
}

disk_description to_disk(json const& from, std::string const& where, std::uint32_t place) {
    check_fields(
        from,
        where,
        {"id",
         "file",
         "file_io",
         "direct",
         "nbd",
         "write_through",
         "connections",
         "rbd",
         "ceph_conf",
         "ceph_user",
         "keyring",
         "ana_group",
         "reservations",
         "memory",
         "block_size",
         "read_only",
         "shared",
         "uuid"}
    );
    disk_description d;
    d.id = field(from, where, "id", place);
    d.file = field(from, where, "file", d.file);
    if (from.contains("block_size")) d.block_bytes = parse_block_size(from, where);
    d.is_read_only = field(from, where, "read_only", false);
    d.is_shared = field(from, where, "shared", false);
    d.is_direct = field(from, where, "direct", false);
    std::string const uuid = field(from, where, "uuid", std::string{});
    if (!uuid.empty()) d.uuid = parse_uuid(uuid, where);
    std::string const memory = field(from, where, "memory", std::string{});
    d.nbd = field(from, where, "nbd", d.nbd);
    d.writes_through = field(from, where, "write_through", false);
    d.connections = field(from, where, "connections", d.connections);
    d.ana_group = field(from, where, "ana_group", d.ana_group);
    d.reservations = field(from, where, "reservations", d.reservations);
    d.rbd = field(from, where, "rbd", d.rbd);
    d.ceph_configuration = field(from, where, "ceph_conf", d.ceph_configuration);
    d.keyring = field(from, where, "keyring", d.keyring);
    std::string const user = field(from, where, "ceph_user", std::string{});
    if (!user.empty() && d.rbd.find('@') < d.rbd.find('/'))
        throw configuration_error{where + ": \"rbd\" names a user already"};
    if (!user.empty()) d.rbd = user + '@' + d.rbd;
    check_source(from, where);
    try {
        if (!memory.empty()) d.memory_bytes = parse_size(memory);
        d.method = parse_method(field(from, where, "file_io", std::string{"auto"}));
    } catch (configuration_error const& e) {
        throw configuration_error{where + ": " + e.what()};
    }
    return d;
}

bool is_same_file(std::string const& a, std::string const& b) {
    if (a.empty() || b.empty()) return false;
    std::error_code ignored;
    return a == b || std::filesystem::equivalent(a, b, ignored);
}

// Of other subsystems. One UUID for several disks is a copy of lines that was not changed.
void check_bytes(
    std::vector<subsystem_description> const& before,
    disk_description const& d,
    std::string const& where
) {
    for (subsystem_description const& s : before) {
        for (disk_description const& each : s.disks) {
            bool const is_same = is_same_file(each.file, d.file) ||
                                 (!d.nbd.empty() && each.nbd == d.nbd) ||
                                 (!d.rbd.empty() && each.rbd == d.rbd);
            if (!d.uuid || each.uuid != d.uuid || is_same) continue;
            throw configuration_error{
                where + ": \"uuid\" is that of another disk, namespace \"id\" " +
                std::to_string(each.id) + " of " + s.nqn};
        }
    }
}

// Of one subsystem.
void check_differ(
    std::vector<disk_description> const& before, disk_description const& d, std::string const& where
) {
    for (disk_description const& each : before) {
        std::string const other = "namespace \"id\" " + std::to_string(each.id);
        if (each.id == d.id) throw configuration_error{where + ": there are two of " + other};
        // A host would take them for one disk.
        if (d.uuid && each.uuid == d.uuid)
            throw configuration_error{where + ": \"uuid\" is that of " + other};
    }
}

constexpr std::array<std::pair<char const*, nvme::ana_state>, 5> ana_names{
    {{"optimized", nvme::ana_state::optimized},
     {"non-optimized", nvme::ana_state::non_optimized},
     {"inaccessible", nvme::ana_state::inaccessible},
     {"persistent-loss", nvme::ana_state::persistent_loss},
     {"changing", nvme::ana_state::changing}}};

std::map<std::uint32_t, nvme::ana_state> to_ana_states(json const& from, std::string const& where) {
    std::map<std::uint32_t, nvme::ana_state> all;
    if (!from.is_object()) throw configuration_error{where + ": \"ana\" is not an object"};
    for (auto const& [group, state] : from.items()) {
        bool const is_number = !group.empty() && group.size() <= 2 &&
                               group.find_first_not_of("0123456789") == group.npos;
        auto const found = std::ranges::find_if(ana_names, [&state = state](auto const& each) {
            return state == each.first;
        });
        if (!is_number || found == ana_names.end())
            throw configuration_error{
                where + ": \"ana\" has \"" + group + "\": " + state.dump() +
                ", and not a number of a group and one of optimized, non-optimized, inaccessible, "
                "persistent-loss and changing"};
        all[static_cast<std::uint32_t>(std::stoul(group))] = found->second;
    }
    return all;
}

// ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT.
rcverbs::endpoint to_endpoint(std::string const& text, std::string const& where) {
    std::string address = text;
    std::string port = "4420";
    std::size_t const colon = text.rfind(':');
    bool const is_bracketed = text.starts_with('[');
    if (colon != text.npos && (is_bracketed || text.find(':') == colon) && !text.ends_with(']')) {
        address = text.substr(0, colon);
        port = text.substr(colon + 1);
    }
    if (is_bracketed && address.ends_with(']')) address = address.substr(1, address.size() - 2);
    boost::system::error_code ec;
    auto const at = boost::asio::ip::make_address(address, ec);
    bool const is_number =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
    unsigned long const number = is_number ? std::stoul(port) : 0;
    if (ec || number == 0 || number > 65535)
        throw configuration_error{
            where + ": " + text +
            " is no address such as 10.0.0.2, 10.0.0.2:4420 or [fd00::2]:4420"};
    return {at, static_cast<std::uint16_t>(number)};
}

nvme::host_secrets to_secrets(json const& from, std::string const& subsystem) {
    std::string const where = subsystem + ", secrets";
    check_fields(from, where, {"host", "secret", "controller_secret"});
    nvme::host_secrets s;
    s.host = field(from, where, "host", s.host);
    s.secret = field(from, where, "secret", s.secret);
    s.controller_secret = field(from, where, "controller_secret", s.controller_secret);
    return s;
}

// The stores that are open, and may each be used, or replaced, once.
class open_files {
public:
    explicit open_files(opened_subsystems const& all) : all_{all} {}

    // The store of the disk that was described alike; null if there is none.
    std::shared_ptr<nvme::block_store> same(std::string const& nqn, disk_description const& d) {
        for (std::size_t i = 0; i < all_.described.size(); ++i) {
            if (all_.described[i].nqn != nqn) continue;
            auto const& disks = all_.described[i].disks;
            // A disk may change its group and its reservations, and keeps its store.
            auto const found = std::ranges::find_if(disks, [&d](disk_description each) {
                each.ana_group = d.ana_group;
                each.reservations = d.reservations;
                return each == d;
            });
            if (found == disks.end()) return nullptr;
            auto const at = static_cast<std::size_t>(found - disks.begin());
            auto const& store = all_.options[i].namespaces[at].store;
            auto const* const file = dynamic_cast<nvme::file_store const*>(store.get());
            if (file != nullptr && !file->is_at(d.file)) return nullptr;
            if (has_lost_writes(*store)) return nullptr;
            used_.insert(store.get());
            return store;
        }
        return nullptr;
    }

    // The store that has the file open, and that no other disk has.
    nvme::file_store const* replaceable(std::string const& file) {
        for (auto const& subsystem : all_.options) {
            for (auto const& each : subsystem.namespaces) {
                auto const* const store = dynamic_cast<nvme::file_store const*>(each.store.get());
                if (store != nullptr && store->is_at(file) && used_.insert(store).second)
                    return store;
            }
        }
        return nullptr;
    }

private:
    opened_subsystems const& all_;
    std::set<nvme::block_store const*> used_;
};

std::shared_ptr<nvme::block_store> make_store(
    disk_description const& d,
    std::string const& nqn,
    open_files& before,
    store_surroundings const& around
) {
    if (is_on_server(d)) return make_server_store(d, nqn, around);
    if (d.file.empty())
        return std::make_shared<nvme::memory_store>(d.memory_bytes, d.block_bytes.value_or(4096));
    nvme::file_store_options options;
    options.block_bytes = d.block_bytes;
    options.is_read_only = d.is_read_only;
    options.is_shared = d.is_shared;
    options.is_direct = d.is_direct;
    options.method = d.method;
    if (nvme::file_store const* const replaced = before.replaceable(d.file))
        return std::make_shared<nvme::file_store>(d.file, options, *replaced);
    return std::make_shared<nvme::file_store>(d.file, options);
}

}  // namespace

disk_error::disk_error(
    boost::system::system_error const& why, std::string const& nqn, std::uint32_t id
)
    : system_error{why.code()},
      text_{"subsystem " + nqn + ", namespace " + std::to_string(id) + ": " + why.what()} {}

bool is_readable_by_all(std::filesystem::path const& file) {
    std::error_code ignored;
    auto const rights = std::filesystem::status(file, ignored).permissions();
    return !ignored &&
           (rights & std::filesystem::perms::others_read) != std::filesystem::perms::none;
}

std::uint64_t parse_size(std::string const& text) {
    std::uint64_t value = 0;
    std::size_t at = 0;
    while (at < text.size() && at < 15 && text[at] >= '0' && text[at] <= '9')
        value = value * 10 + static_cast<std::uint64_t>(text[at++] - '0');
    static std::string const units = "KMGT";
    std::string const unit = text.substr(at);
    std::size_t const power = unit.empty() ? 0 : units.find(unit) + 1;
    bool const is_right = at > 0 && value > 0 && (unit.empty() || (unit.size() == 1 && power > 0));
    if (!is_right || value > std::numeric_limits<std::uint64_t>::max() >> 10 * power)
        throw configuration_error{text + " is not a size such as 4096, 64K, 512M, 2G or 1T"};
    return value << 10 * power;
}

std::pair<std::uint16_t, std::uint16_t> parse_controller_ids(std::string const& text) {
    std::size_t const dash = text.find('-');
    auto const number = [](std::string const& digits) -> std::uint16_t {
        bool const is_right = !digits.empty() && digits.size() <= 5 &&
                              digits.find_first_not_of("0123456789") == std::string::npos;
        unsigned long const value = is_right ? std::stoul(digits) : 0;
        return static_cast<std::uint16_t>(value <= 65519 ? value : 0);
    };
    std::uint16_t const first = number(text.substr(0, dash));
    std::uint16_t const last = dash == text.npos ? std::uint16_t{0} : number(text.substr(dash + 1));
    if (first == 0 || last < first)
        throw configuration_error{text + " is no range of controller numbers, such as 1-1000"};
    return {first, last};
}

std::string plain_names(std::string text) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"an option is out of its range. Correct the option.: ", ""},
        {"store_geometry::block_bytes", "block size"},
        {"file_store_options::block_bytes", "block size"},
        {"memory_store::block_bytes", "block size"},
        {"store_geometry::size_bytes", "size"},
        {"memory_store::size_bytes", "size"},
        {"namespace_options::id", "namespace \"id\""},
        {"namespace_options::uuid, or that of the store,",
         "its \"uuid\", or without one the UUID of its file,"},
        {"subsystem_options::nqn", "NQN"},
        {"subsystem_options::serial_number", "\"serial\""},
        {"subsystem_options::ana_states", "\"ana\""},
        {"subsystem_options::other_addresses", "\"other_addresses\""},
        {"namespace_options::ana_group", "\"ana_group\""},
        {"subsystem_options::model", "\"model\""},
        {"host_secrets::secret", "\"secret\""},
        {"host_secrets::controller_secret", "\"controller_secret\""},
        {"host_secrets::host", "\"host\" of a secret"}};
    for (auto const& [from, to] : names) {
        for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
            text.replace(at, from.size(), to);
    }
    // Others are called alike in the configuration.
    static std::regex const option{"[a-z_]+_options::([a-z_]+)"};
    text = std::regex_replace(text, option, "\"$1\"");
    std::size_t const code = text.rfind(" [rcverbs:");
    return code == text.npos ? text : text.substr(0, code) + '.';
}

std::string plain_text(std::exception const& e, std::string const& configuration) {
    auto const* const coded = dynamic_cast<boost::system::system_error const*>(&e);
    bool const is_option = coded != nullptr && coded->code() == rcverbs::errc::invalid_option;
    return (is_option && !configuration.empty() ? configuration + ": " : "") +
           plain_names(e.what());
}

nvme::file_method parse_method(std::string const& text) {
    if (text == "auto") return nvme::file_method::automatic;
    if (text == "io_uring") return nvme::file_method::io_uring;
    if (text == "threads") return nvme::file_method::threads;
    throw configuration_error{text + " is none of auto, io_uring and threads"};
}

std::vector<subsystem_description> read_configuration(std::filesystem::path const& file) {
    std::string const name = file.string();
    std::ifstream in{file};
    if (!in) throw configuration_error{name + " cannot be read"};
    json root;
    try {
        root = parse_json(in);
    } catch (std::exception const& e) {
        throw configuration_error{name + ": " + e.what()};
    }
    check_fields(root, name, {"subsystems"});
    std::vector<subsystem_description> all;
    for (json const& one : filled_list(root, name, "subsystems")) {
        std::string const where = name + ": subsystem " + std::to_string(all.size() + 1);
        check_fields(
            one,
            where,
            {"nqn",
             "allow_hosts",
             "secrets",
             "serial",
             "model",
             "ana",
             "other_addresses",
             "namespaces"}
        );
        subsystem_description s;
        s.nqn = field(one, where, "nqn", std::string{});
        if (s.nqn.empty()) throw configuration_error{where + " needs an \"nqn\""};
        if (std::ranges::find(all, s.nqn, &subsystem_description::nqn) != all.end())
            throw configuration_error{where + ": \"nqn\" is that of another subsystem"};
        s.allowed_hosts = field(one, where, "allow_hosts", s.allowed_hosts);
        s.serial_number = field(one, where, "serial", std::string{});
        s.model = field(one, where, "model", std::string{});
        if (one.contains("ana")) s.ana_states = to_ana_states(one["ana"], where);
        for (std::string const& each :
             field(one, where, "other_addresses", std::vector<std::string>{}))
            s.other_addresses.push_back(to_endpoint(each, where));
        if (one.contains("secrets")) {
            for (json const& secret : filled_list(one, where, "secrets"))
                s.secrets.push_back(to_secrets(secret, where));
        }
        for (json const& disk : list(one, where, "namespaces")) {
            auto const place = static_cast<std::uint32_t>(s.disks.size() + 1);
            std::string const here = where + ", namespace " + std::to_string(place);
            disk_description d = to_disk(disk, here, place);
            check_differ(s.disks, d, here);
            check_bytes(all, d, here);
            s.disks.push_back(std::move(d));
        }
        all.push_back(std::move(s));
    }
    return all;
}

std::vector<std::string> changes(
    std::vector<subsystem_description> const& before,
    std::vector<subsystem_description> const& after
) {
    std::vector<std::string> lines;
    // Two lists of which each has a key only once.
    auto const compare =
        [&lines](auto const& old, auto const& now, auto key, auto name, auto differ) {
            for (auto const& each : old) {
                if (std::ranges::find(now, each.*key, key) == now.end())
                    lines.push_back(name(each) + " removed.");
            }
            for (auto const& each : now) {
                auto const found = std::ranges::find(old, each.*key, key);
                if (found == old.end()) lines.push_back(name(each) + " added.");
                else differ(*found, each);
            }
        };
    auto const compare_disks = [&](subsystem_description const& old,
                                   subsystem_description const& now) {
        auto const name = [&now](disk_description const& d) {
            return "namespace " + std::to_string(d.id) + " of " + now.nqn;
        };
        compare(
            old.disks,
            now.disks,
            &disk_description::id,
            name,
            [&](disk_description const& a, disk_description const& b) {
                if (!(a == b)) lines.push_back(name(b) + " changed.");
            }
        );
        if (old.allowed_hosts != now.allowed_hosts)
            lines.push_back("\"allow_hosts\" of " + now.nqn + " changed.");
        if (old.secrets != now.secrets) lines.push_back("\"secrets\" of " + now.nqn + " changed.");
        if (old.serial_number != now.serial_number || old.model != now.model)
            lines.push_back("\"serial\" or \"model\" of " + now.nqn + " changed.");
        if (old.ana_states != now.ana_states)
            lines.push_back("\"ana\" of " + now.nqn + " changed.");
        if (old.other_addresses != now.other_addresses)
            lines.push_back("\"other_addresses\" of " + now.nqn + " changed.");
    };
    compare(
        before,
        after,
        &subsystem_description::nqn,
        [](subsystem_description const& s) { return "subsystem " + s.nqn; },
        compare_disks
    );
    return lines;
}

opened_subsystems open_stores(
    std::vector<subsystem_description> all,
    opened_subsystems const& before,
    store_surroundings const& around
) {
    open_files open{before};
    opened_subsystems out;
    for (subsystem_description const& s : all) {
        nvme::subsystem_options next;
        next.nqn = s.nqn;
        next.allowed_hosts = s.allowed_hosts;
        next.secrets = s.secrets;
        next.serial_number = s.serial_number;
        next.ana_states = s.ana_states;
        next.other_addresses = s.other_addresses;
        if (!s.model.empty()) next.model = s.model;
        for (disk_description const& d : s.disks) {
            nvme::namespace_options n;
            n.id = d.id;
            n.store = open.same(s.nqn, d);
            n.is_read_only = d.is_read_only;
            n.uuid = d.uuid;
            n.ana_group = d.ana_group;
            n.reservation_file = d.reservations;
            next.namespaces.push_back(std::move(n));
        }
        out.options.push_back(std::move(next));
    }
    // Afterwards, so that a store that stays is not replaced.
    for (std::size_t i = 0; i < all.size(); ++i) {
        for (std::size_t j = 0; j < all[i].disks.size(); ++j) {
            auto& store = out.options[i].namespaces[j].store;
            if (store != nullptr) continue;
            try {
                store = make_store(all[i].disks[j], all[i].nqn, open, around);
            } catch (boost::system::system_error const& e) {
                throw disk_error{e, all[i].nqn, all[i].disks[j].id};
            }
        }
    }
    out.described = std::move(all);
    return out;
}

}  // namespace demo
