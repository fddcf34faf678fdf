#include "rdma-copy/copy_message.hpp"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
// Finds out at run time which instructions there are.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <string_view>

#include "rdma-copy/exclusions.hpp"

namespace copy {

namespace {

template <std::integral T>
std::array<std::byte, sizeof(T)> bytes_of(T value) {
    auto const bits = static_cast<std::make_unsigned_t<T>>(value);
    std::array<std::byte, sizeof(T)> bytes;
    for (std::size_t i = 0; i < sizeof(T); ++i)
        bytes[i] = static_cast<std::byte>(bits >> (8 * (sizeof(T) - 1 - i)) & 0xff);
    return bytes;
}

// Adds to the bytes.
class writer {
public:
    explicit writer(std::vector<std::byte>& out) : out_{out} {}

    template <std::integral T>
    void put(T value) {
        put(std::span<std::byte const>{bytes_of(value)});
    }
    void put(std::span<std::byte const> bytes) {
        out_.insert(out_.end(), bytes.begin(), bytes.end());
    }
    void put(std::string const& text) {
        put(static_cast<std::uint16_t>(text.size()));
        put(std::as_bytes(std::span{text}));
    }

private:
    std::vector<std::byte>& out_;
};

class reader {
public:
    explicit reader(std::span<std::byte const> in) noexcept : in_{in} {}

    template <std::integral T>
    T get() noexcept {
        std::make_unsigned_t<T> value = 0;
        for (std::byte const b : take(sizeof(T)))
            value = static_cast<std::make_unsigned_t<T>>(
                static_cast<std::uint64_t>(value) << 8 | std::to_integer<std::uint64_t>(b)
            );
        return static_cast<T>(value);
    }
    std::string text() {
        std::span<std::byte const> const bytes = take(get<std::uint16_t>());
        std::string const s{reinterpret_cast<char const*>(bytes.data()), bytes.size()};
        if (s.size() > text_bytes_max || s.find('\0') != std::string::npos) is_good_ = false;
        return s;
    }
    int error() noexcept { return get<std::uint16_t>(); }
    /// A number up to `last`.
    template <class Enumeration>
    Enumeration one_of(Enumeration last) noexcept {
        auto const value = get<std::uint8_t>();
        require(value <= static_cast<std::uint8_t>(last));
        return static_cast<Enumeration>(value);
    }
    hash checksum() noexcept {
        hash h{};
        auto const bytes = take(h.size());
        if (bytes.size() == h.size()) std::memcpy(h.data(), bytes.data(), h.size());
        return h;
    }
    std::vector<std::byte> bytes(std::uint64_t size) {
        require(size <= in_.size());
        auto const taken = is_good_ ? take(static_cast<std::size_t>(size)) : in_.first(0);
        return {taken.begin(), taken.end()};
    }
    std::vector<std::byte> rest() { return bytes(in_.size()); }
    void require(bool is_true) noexcept { is_good_ = is_good_ && is_true; }
    bool is_complete() const noexcept { return is_good_ && in_.empty(); }

private:
    std::span<std::byte const> take(std::size_t size) noexcept {
        if (size > in_.size()) {
            is_good_ = false;
            return {};
        }
        auto const taken = in_.first(size);
        in_ = in_.subspan(size);
        return taken;
    }

    std::span<std::byte const> in_;
    bool is_good_ = true;
};

// Of HELLO.
constexpr std::uint16_t flag_replaces = 1;
constexpr std::uint16_t flag_owners = 2;
constexpr std::uint16_t flag_verifies = 4;
constexpr std::uint16_t flag_total = 8;
constexpr std::uint16_t flag_continues = 16;
constexpr std::uint16_t flag_lists = 32;
constexpr std::uint16_t flag_deletes = 64;
constexpr std::uint16_t flag_keeps_attributes = 128;
constexpr std::uint16_t flag_keeps_acls = 256;
constexpr std::uint16_t flags_of_hello = 511;
// Of ENTRY.
constexpr std::uint8_t flag_sparse = 1;
constexpr std::uint8_t flag_names = 2;
constexpr std::uint8_t flag_attributes = 4;
constexpr std::uint8_t flag_acl = 8;
constexpr std::uint8_t flag_asks = 16;
constexpr std::uint8_t flags_of_entry = 31;

template <std::integral T>
T flag_if(bool is_set, T flag) {
    return is_set ? flag : T{0};
}

void write(writer& w, hello const& m) {
    w.put(m.speaks);
    w.put(static_cast<std::uint8_t>(m.way));
    w.put(static_cast<std::uint8_t>(m.where));
    w.put(static_cast<std::uint16_t>(
        flag_if(m.replaces, flag_replaces) | flag_if(m.keeps_owners, flag_owners) |
        flag_if(m.verifies, flag_verifies) | flag_if(m.wants_total, flag_total) |
        flag_if(m.continues, flag_continues) | flag_if(m.lists, flag_lists) |
        flag_if(m.deletes, flag_deletes) | flag_if(m.keeps_attributes, flag_keeps_attributes) |
        flag_if(m.keeps_acls, flag_keeps_acls)
    ));
    w.put(m.exclusions);
    w.put(m.bytes_per_second);
    w.put(m.name);
}
void read(reader& r, hello& m) {
    m.speaks = r.get<std::uint16_t>();
    m.way = r.one_of(direction::to_client);
    m.where = r.one_of(placing::onto);
    auto const flags = r.get<std::uint16_t>();
    r.require((flags & ~flags_of_hello) == 0);
    m.replaces = (flags & flag_replaces) != 0;
    m.keeps_owners = (flags & flag_owners) != 0;
    m.verifies = (flags & flag_verifies) != 0;
    m.wants_total = (flags & flag_total) != 0;
    m.continues = (flags & flag_continues) != 0;
    m.lists = (flags & flag_lists) != 0;
    m.deletes = (flags & flag_deletes) != 0;
    m.keeps_attributes = (flags & flag_keeps_attributes) != 0;
    m.keeps_acls = (flags & flag_keeps_acls) != 0;
    r.require(!m.deletes || m.way == direction::to_server);
    m.exclusions = r.get<std::uint16_t>();
    r.require(m.exclusions <= exclusions::patterns_max);
    m.bytes_per_second = r.get<std::uint64_t>();
    r.require(m.bytes_per_second == 0 || m.bytes_per_second >= rate_min);
    m.name = r.text();
}
void write(writer& w, welcome const& m) {
    w.put(m.speaks);
    w.put(static_cast<std::uint16_t>(m.error));
}
void read(reader& r, welcome& m) {
    m.speaks = r.get<std::uint16_t>();
    m.error = r.error();
}
void write(writer& w, slots const& m) {
    w.put(m.address);
    w.put(m.key);
    w.put(m.slot_bytes);
    w.put(m.count);
}
void read(reader& r, slots& m) {
    m.address = r.get<std::uint64_t>();
    m.key = r.get<std::uint32_t>();
    m.slot_bytes = r.get<std::uint32_t>();
    m.count = r.get<std::uint16_t>();
    r.require(m.slot_bytes > 0 && m.count > 0);
}
void write(writer& w, credit const& m) { w.put(m.slot); }
void read(reader& r, credit& m) { m.slot = r.get<std::uint16_t>(); }

void write(writer& w, begin const& m) {
    w.put(m.file);
    w.put(m.offset);
}
void read(reader& r, begin& m) {
    m.file = r.get<std::uint64_t>();
    m.offset = r.get<std::uint64_t>();
}

// ABORT, DONE and END.
template <class Message>
concept of_a_file = requires(Message m) {
    m.file;
    m.error;
};
template <of_a_file Message>
void write(writer& w, Message const& m) {
    w.put(m.file);
    w.put(static_cast<std::uint16_t>(m.error));
}
template <of_a_file Message>
void read(reader& r, Message& m) {
    m.file = r.get<std::uint64_t>();
    m.error = r.error();
}
void write(writer& w, entry const& m) {
    w.put(m.file);
    w.put(m.directory);
    w.put(static_cast<std::uint8_t>(m.type));
    w.put(static_cast<std::uint8_t>(
        flag_if(m.is_sparse, flag_sparse) | flag_if(m.has_names, flag_names) |
        flag_if(m.has_attributes, flag_attributes) | flag_if(m.has_acl, flag_acl) |
        flag_if(m.asks, flag_asks)
    ));
    w.put(m.mode);
    w.put(m.user);
    w.put(m.group);
    w.put(m.seconds);
    w.put(m.nanoseconds);
    w.put(m.size);
    w.put(std::span<std::byte const>{m.identity});
    w.put(m.name);
    w.put(m.target);
}
void read(reader& r, entry& m) {
    constexpr std::uint16_t permissions = 07777;
    m.file = r.get<std::uint64_t>();
    m.directory = r.get<std::uint64_t>();
    m.type = r.one_of(entry_type::hard_link);
    auto const flags = r.get<std::uint8_t>();
    r.require((flags & ~flags_of_entry) == 0);
    m.is_sparse = (flags & flag_sparse) != 0;
    m.has_names = (flags & flag_names) != 0;
    m.has_attributes = (flags & flag_attributes) != 0;
    m.has_acl = (flags & flag_acl) != 0;
    m.asks = (flags & flag_asks) != 0;
    m.mode = r.get<std::uint16_t>();
    m.user = r.get<std::uint32_t>();
    m.group = r.get<std::uint32_t>();
    m.seconds = r.get<std::int64_t>();
    m.nanoseconds = r.get<std::uint32_t>();
    m.size = r.get<std::uint64_t>();
    m.identity = r.checksum();
    m.name = r.text();
    m.target = r.text();
    r.require(m.mode <= permissions && m.nanoseconds <= nanoseconds_max);
    r.require(m.size <= static_cast<std::uint64_t>(INT64_MAX));
    bool const has_target = m.type == entry_type::symbolic_link || m.type == entry_type::hard_link;
    r.require(has_target == !m.target.empty());
    r.require(m.type == entry_type::directory_end ? m.name.empty() : is_name(m.name));
    bool const is_file = m.type == entry_type::file;
    r.require(is_file || (m.size == 0 && !m.is_sparse && !m.has_names && !m.asks));
    r.require(is_file || m.type == entry_type::directory_end || (!m.has_attributes && !m.has_acl));
}
void write(writer& w, block const& m) {
    w.put(m.file);
    w.put(m.offset);
    w.put(m.bytes);
    w.put(m.slot);
    w.put(std::span<std::byte const>{m.checksum});
}
void read(reader& r, block& m) {
    m.file = r.get<std::uint64_t>();
    m.offset = r.get<std::uint64_t>();
    m.bytes = r.get<std::uint32_t>();
    m.slot = r.get<std::uint16_t>();
    m.checksum = r.checksum();
    r.require(m.bytes > 0);
}
void write(writer& w, hole const& m) {
    w.put(m.file);
    w.put(m.offset);
    w.put(m.bytes);
}
void read(reader& r, hole& m) {
    m.file = r.get<std::uint64_t>();
    m.offset = r.get<std::uint64_t>();
    m.bytes = r.get<std::uint64_t>();
    r.require(m.bytes > 0);
}
void write(writer& w, skipped const& m) {
    w.put(static_cast<std::uint16_t>(m.error));
    w.put(m.path);
}
void read(reader& r, skipped& m) {
    m.error = r.error();
    m.path = r.text();
    r.require(m.error != 0);
}
void write(writer& w, total const& m) {
    w.put(m.entries);
    w.put(m.bytes);
}
void read(reader& r, total& m) {
    m.entries = r.get<std::uint64_t>();
    m.bytes = r.get<std::uint64_t>();
}
void write(writer&, finished const&) {}
void read(reader&, finished&) {}
void write(writer&, alive const&) {}
void read(reader&, alive&) {}
void write(writer& w, not_kept const& m) {
    w.put(m.special_modes);
    w.put(m.owners);
    w.put(m.attributes);
    w.put(m.acls);
}
void read(reader& r, not_kept& m) {
    m.special_modes = r.get<std::uint64_t>();
    m.owners = r.get<std::uint64_t>();
    m.attributes = r.get<std::uint64_t>();
    m.acls = r.get<std::uint64_t>();
    r.require(m != not_kept{});
}

void write(writer& w, batch const& m) {
    w.put(m.slot);
    w.put(m.bytes);
    w.put(std::span<std::byte const>{m.checksum});
}
void read(reader& r, batch& m) {
    m.slot = r.get<std::uint16_t>();
    m.bytes = r.get<std::uint32_t>();
    m.checksum = r.checksum();
    r.require(m.bytes > 0 && m.bytes <= batch_bytes_max);
}
void write(writer& w, whole_file const& m) {
    write(w, m.what);
    w.put(std::span{m.bytes});
}
void read(reader& r, whole_file& m) {
    read(r, m.what);
    entry const& e = m.what;
    r.require(e.type == entry_type::file && !e.is_sparse && !e.has_names && !e.asks);
    r.require(e.size <= whole_bytes_max);
    m.bytes = r.bytes(e.size);
}
void write(writer& w, wanted const& m) { w.put(m.file); }
void read(reader& r, wanted& m) { m.file = r.get<std::uint64_t>(); }
void write(writer&, stopped const&) {}
void read(reader&, stopped&) {}
void write(writer& w, deleted const& m) {
    w.put(static_cast<std::uint16_t>(m.error));
    w.put(m.path);
}
void read(reader& r, deleted& m) {
    m.error = r.error();
    m.path = r.text();
}
void write(writer& w, attribute const& m) {
    w.put(m.name);
    w.put(static_cast<std::uint8_t>(m.continues));
    w.put(std::span{m.value});
}
void read(reader& r, attribute& m) {
    m.name = r.text();
    auto const continues = r.get<std::uint8_t>();
    m.continues = continues == 1;
    m.value = r.rest();
    r.require(continues <= 1 && is_attribute_name(m.name));
    // A part that is not the last one is a whole one.
    r.require(m.value.size() <= attribute_part_bytes_max);
    r.require(!m.continues || m.value.size() == attribute_part_bytes_max);
}
void write(writer& w, exclude const& m) { w.put(m.pattern); }
void read(reader& r, exclude& m) {
    m.pattern = r.text();
    r.require(!m.pattern.empty());
}

template <std::size_t Place = 0>
std::optional<copy_message> decode_as(std::uint64_t kind, std::span<std::byte const> in) {
    if constexpr (Place < std::variant_size_v<copy_message>) {
        if (kind != Place) return decode_as<Place + 1>(kind, in);
        std::variant_alternative_t<Place, copy_message> m;
        reader r{in};
        read(r, m);
        if (r.is_complete()) return m;
    }
    return {};
}

}  // namespace

std::vector<std::byte> encode(copy_message const& m) {
    std::vector<std::byte> bytes;
    writer w{bytes};
    std::visit([&](auto const& each) { write(w, each); }, m);
    return bytes;
}

std::optional<copy_message> decode(std::uint64_t kind, std::span<std::byte const> in) {
    return decode_as(kind, in);
}

void append(std::vector<std::byte>& to, copy_message const& m) {
    std::size_t const at = to.size();
    writer w{to};
    w.put(static_cast<std::uint8_t>(m.index()));
    w.put(std::uint32_t{0});
    std::visit([&](auto const& each) { write(w, each); }, m);
    // Its size, which is known now.
    auto const size = static_cast<std::uint32_t>(to.size() - at - message_head_bytes);
    std::ranges::copy(bytes_of(size), &to[at + 1]);
}

std::optional<copy_message> take_first(std::span<std::byte const>& from) {
    if (from.size() < message_head_bytes) return {};
    reader head{from.first(message_head_bytes)};
    auto const kind = head.get<std::uint8_t>();
    auto const size = head.get<std::uint32_t>();
    from = from.subspan(message_head_bytes);
    if (size > from.size()) return {};
    auto m = decode(kind, from.first(size));
    from = from.subspan(size);
    return m;
}

bool is_inside(std::string const& path) noexcept {
    std::string_view rest = path;
    for (;;) {
        std::size_t const slash = rest.find('/');
        std::string_view const component = rest.substr(0, slash);
        if (component.empty() || component == "." || component == "..") return false;
        if (slash == std::string_view::npos) return true;
        rest.remove_prefix(slash + 1);
    }
}

bool is_name(std::string const& text) noexcept {
    return is_inside(text) && text.find('/') == std::string::npos;
}

std::string joined(std::string directory, std::string const& name) {
    if (!directory.empty()) directory += '/';
    directory += name;
    return directory;
}

bool is_reserved(std::string const& path) noexcept {
    std::string_view rest = path;
    for (;;) {
        std::size_t const slash = rest.find('/');
        std::string_view const component = rest.substr(0, slash);
        if (component.starts_with('.') && component.find(temporary_mark) != std::string_view::npos)
            return true;
        if (slash == std::string_view::npos) return false;
        rest.remove_prefix(slash + 1);
    }
}

hash hash_of(std::span<std::byte const> bytes) noexcept {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
    hash h{};
    static_assert(sizeof canonical == sizeof h);
    std::memcpy(h.data(), &canonical, sizeof h);
    return h;
}

}  // namespace copy
