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

namespace demo {

namespace nvme = rcverbs::nvme;
using nlohmann::json;

namespace {

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
    if (found == object.end() || !found->is_array() || found->empty())
        throw configuration_error{where + ": \"" + name + "\" is not a list of one or more"};
    return *found;
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

disk_description to_disk(json const& from, std::string const& where, std::uint32_t place) {
    check_fields(
        from,
        where,
        {"id", "file", "file_io", "direct", "memory", "block_size", "read_only", "shared", "uuid"}
    );
    disk_description d;
    d.id = field(from, where, "id", place);
    d.file = field(from, where, "file", d.file);
    if (from.contains("block_size"))
        d.block_bytes = field(from, where, "block_size", std::uint32_t{0});
    d.is_read_only = field(from, where, "read_only", false);
    d.is_shared = field(from, where, "shared", false);
    d.is_direct = field(from, where, "direct", false);
    std::string const uuid = field(from, where, "uuid", std::string{});
    if (!uuid.empty()) d.uuid = parse_uuid(uuid, where);
    d.method = parse_method(field(from, where, "file_io", std::string{"auto"}));
    std::string const memory = field(from, where, "memory", std::string{});
    if (d.file.empty() == memory.empty())
        throw configuration_error{where + " needs either \"file\" or \"memory\""};
    if (!memory.empty()) d.memory_bytes = parse_size(memory);
    return d;
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
            auto const found = std::ranges::find(disks, d);
            if (found == disks.end()) return nullptr;
            auto const at = static_cast<std::size_t>(found - disks.begin());
            auto const& store = all_.options[i].namespaces[at].store;
            auto const* const file = dynamic_cast<nvme::file_store const*>(store.get());
            if (file != nullptr && !file->is_at(d.file)) return nullptr;
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

std::shared_ptr<nvme::block_store> make_store(disk_description const& d, open_files& before) {
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
        {"subsystem_options::nqn", "NQN"},
        {"subsystem_options::serial_number", "\"serial\""},
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

nvme::file_method parse_method(std::string const& text) {
    if (text == "auto") return nvme::file_method::automatic;
    if (text == "io_uring") return nvme::file_method::io_uring;
    if (text == "threads") return nvme::file_method::threads;
    throw configuration_error{text + " is none of auto, io_uring and threads"};
}

std::vector<subsystem_description> read_configuration(std::filesystem::path const& file) {
    std::ifstream in{file};
    if (!in) throw configuration_error{file.string() + " cannot be read"};
    json root;
    try {
        root = json::parse(in);
    } catch (json::exception const& e) {
        throw configuration_error{file.string() + ": " + e.what()};
    }
    check_fields(root, file.string(), {"subsystems"});
    std::vector<subsystem_description> all;
    for (json const& one : list(root, file.string(), "subsystems")) {
        std::string const where = file.string() + ": subsystem " + std::to_string(all.size() + 1);
        check_fields(
            one, where, {"nqn", "allow_hosts", "secrets", "serial", "model", "namespaces"}
        );
        subsystem_description s;
        s.nqn = field(one, where, "nqn", std::string{});
        if (s.nqn.empty()) throw configuration_error{where + " needs an \"nqn\""};
        s.allowed_hosts = field(one, where, "allow_hosts", s.allowed_hosts);
        s.serial_number = field(one, where, "serial", std::string{});
        s.model = field(one, where, "model", std::string{});
        if (one.contains("secrets")) {
            for (json const& secret : list(one, where, "secrets"))
                s.secrets.push_back(to_secrets(secret, where));
        }
        for (json const& disk : list(one, where, "namespaces")) {
            auto const place = static_cast<std::uint32_t>(s.disks.size() + 1);
            s.disks.push_back(to_disk(disk, where + ", namespace " + std::to_string(place), place));
        }
        all.push_back(std::move(s));
    }
    return all;
}

opened_subsystems open_stores(
    std::vector<subsystem_description> all, opened_subsystems const& before
) {
    open_files open{before};
    opened_subsystems out;
    for (subsystem_description const& s : all) {
        nvme::subsystem_options next;
        next.nqn = s.nqn;
        next.allowed_hosts = s.allowed_hosts;
        next.secrets = s.secrets;
        next.serial_number = s.serial_number;
        if (!s.model.empty()) next.model = s.model;
        for (disk_description const& d : s.disks) {
            nvme::namespace_options n;
            n.id = d.id;
            n.store = open.same(s.nqn, d);
            n.is_read_only = d.is_read_only;
            n.uuid = d.uuid;
            next.namespaces.push_back(std::move(n));
        }
        out.options.push_back(std::move(next));
    }
    // Afterwards, so that a store that stays is not replaced.
    for (std::size_t i = 0; i < all.size(); ++i) {
        for (std::size_t j = 0; j < all[i].disks.size(); ++j) {
            auto& store = out.options[i].namespaces[j].store;
            if (store == nullptr) store = make_store(all[i].disks[j], open);
        }
    }
    out.described = std::move(all);
    return out;
}

}  // namespace demo
