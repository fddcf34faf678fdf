#include "reservations.hpp"

#include <algorithm>
#include <ios>
#include <sstream>

#include "identity.hpp"

namespace rcverbs::nvme::detail {

namespace {

// Fields of dword 10.
constexpr std::uint32_t action_field = 7;
constexpr std::uint32_t ignores_key_bit = 1U << 3;

reservation_type type_of(command const& c) noexcept {
    return static_cast<reservation_type>(c.dword[0] >> 8 & 0xff);
}
bool is_type(reservation_type t) noexcept {
    return t >= reservation_type::write_exclusive &&
           t <= reservation_type::exclusive_access_all_registrants;
}

reservations::outcome refused(status why) { return {why, {}, {}}; }

std::optional<host_id> host_of(std::string const& text) {
    host_id host{};
    if (text.size() != 2 * host.size() || text.find_first_not_of("0123456789abcdef") != text.npos)
        return std::nullopt;
    for (std::size_t i = 0; i < host.size(); ++i)
        host.at(i) = static_cast<std::byte>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
    return host;
}

constexpr char const* heading = "rcverbs reservations 1";

}  // namespace

reservations::registrant* reservations::find(host_id const& host) noexcept {
    auto const found = std::ranges::find(registrants_, host, &registrant::host);
    return found == registrants_.end() ? nullptr : &*found;
}
reservations::registrant const* reservations::find(host_id const& host) const noexcept {
    auto const found = std::ranges::find(registrants_, host, &registrant::host);
    return found == registrants_.end() ? nullptr : &*found;
}

bool reservations::is_all_registrants() const noexcept {
    return type_ >= reservation_type::write_exclusive_all_registrants;
}
bool reservations::is_for_registrants() const noexcept {
    return type_ >= reservation_type::write_exclusive_registrants_only;
}
bool reservations::holds(host_id const& host) const noexcept {
    if (!is_reserved()) return false;
    return is_all_registrants() ? find(host) != nullptr : holder_ == host;
}

bool reservations::conflicts(host_id const& host, access_kind access) const noexcept {
    if (!is_reserved() || holds(host)) return false;
    if (is_for_registrants() && find(host) != nullptr) return false;
    bool const excludes_reads = type_ == reservation_type::exclusive_access ||
                                type_ == reservation_type::exclusive_access_registrants_only ||
                                type_ == reservation_type::exclusive_access_all_registrants;
    return access == access_kind::write || excludes_reads;
}

reservations::outcome reservations::execute(
    command const& c, host_id const& host, std::span<std::byte const> data, bool can_save
) {
    switch (c.code) {
    case opcode::reservation_register: {
        // 0: no change, 2: not kept, 3: kept.
        std::uint32_t const kept = c.dword[0] >> 30;
        if (kept == 1 || (kept == 3 && !can_save)) return refused(status::invalid_field);
        outcome done = register_host(c, host, data);
        if (done.code == status::success && kept != 0) is_kept_ = kept == 3;
        return done;
    }
    case opcode::reservation_acquire: return acquire(c, host, data);
    case opcode::reservation_release: return release(c, host, data);
    default: return refused(status::invalid_opcode);
    }
}

reservations::outcome reservations::register_host(
    command const& c, host_id const& host, std::span<std::byte const> data
) {
    enum action : std::uint32_t { add = 0, remove = 1, replace = 2 };
    if (data.size() < 16) return refused(status::sgl_data_length_invalid);
    auto const current = load<std::uint64_t>(data, 0);
    auto const next = load<std::uint64_t>(data, 8);
    registrant* const mine = find(host);
    bool const has_right =
        mine != nullptr && ((c.dword[0] & ignores_key_bit) != 0 || mine->key == current);
    outcome done;
    switch (c.dword[0] & action_field) {
    case add:
        if (mine != nullptr) {
            if (mine->key != next) return refused(status::reservation_conflict);
            break;
        }
        if (registrants_.size() == registrants_max) return refused(status::capacity_exceeded);
        registrants_.push_back({host, next});
        break;
    case remove:
        if (!has_right) return refused(status::reservation_conflict);
        remove_registrant(host, done);
        break;
    case replace:
        if (!has_right) return refused(status::reservation_conflict);
        mine->key = next;
        break;
    default: return refused(status::invalid_field);
    }
    ++generation_;
    return done;
}

reservations::outcome reservations::acquire(
    command const& c, host_id const& host, std::span<std::byte const> data
) {
    enum action : std::uint32_t { reserve = 0, preempt_others = 1, preempt_and_abort = 2 };
    if (data.size() < 16) return refused(status::sgl_data_length_invalid);
    reservation_type const wanted = type_of(c);
    std::uint32_t const what = c.dword[0] & action_field;
    if (!is_type(wanted) || (c.dword[0] & ignores_key_bit) != 0 || what > preempt_and_abort)
        return refused(status::invalid_field);
    registrant const* const mine = find(host);
    if (mine == nullptr || mine->key != load<std::uint64_t>(data, 0))
        return refused(status::reservation_conflict);
    if (what != reserve) return preempt(host, load<std::uint64_t>(data, 8), wanted);
    if (is_reserved())
        return holds(host) && type_ == wanted ? outcome{} : refused(status::reservation_conflict);
    type_ = wanted;
    holder_ = host;
    return {};
}

reservations::outcome reservations::preempt(
    host_id const& host, std::uint64_t key, reservation_type type
) {
    outcome done;
    auto const has_key = [key](registrant const& r) { return r.key == key; };
    bool const is_known = std::ranges::any_of(registrants_, has_key);
    if (is_all_registrants() && key == 0) {
        remove_others(host, std::nullopt, done);
    } else if (is_reserved() && !is_all_registrants() && find(holder_)->key == key) {
        remove_others(host, key, done);
    } else {
        // Only registrations are removed.
        if (is_reserved() && key == 0) return refused(status::invalid_field);
        if (!is_known) return refused(status::reservation_conflict);
        remove_others(host, key, done);
        ++generation_;
        return done;
    }
    // Those that stay registered learn that another reservation has taken the place of theirs.
    if (is_for_registrants() && type_ != type) {
        for (registrant const& r : registrants_) {
            if (r.host != host)
                done.notices.push_back({r.host, reservation_notice::reservation_released});
        }
    }
    type_ = type;
    holder_ = host;
    ++generation_;
    return done;
}

reservations::outcome reservations::release(
    command const& c, host_id const& host, std::span<std::byte const> data
) {
    enum action : std::uint32_t { give_up = 0, clear = 1 };
    if (data.size() < 8) return refused(status::sgl_data_length_invalid);
    std::uint32_t const what = c.dword[0] & action_field;
    if (what > clear || (c.dword[0] & ignores_key_bit) != 0) return refused(status::invalid_field);
    registrant const* const mine = find(host);
    if (mine == nullptr || mine->key != load<std::uint64_t>(data, 0))
        return refused(status::reservation_conflict);
    outcome done;
    if (what == clear) {
        for (registrant const& r : registrants_) {
            if (r.host != host)
                done.notices.push_back({r.host, reservation_notice::reservation_preempted});
        }
        registrants_.clear();
        type_ = reservation_type::none;
        ++generation_;
        return done;
    }
    if (!holds(host)) return done;
    if (type_of(c) != type_) return refused(status::invalid_field);
    end_reservation(host, done);
    return done;
}

void reservations::remove_registrant(host_id const& host, outcome& o) {
    bool const was_holder = holds(host);
    std::erase_if(registrants_, [&](registrant const& r) { return r.host == host; });
    bool const is_last = !is_all_registrants() || registrants_.empty();
    if (was_holder && is_last) end_reservation(host, o);
}

void reservations::end_reservation(host_id const& by, outcome& o) {
    if (is_for_registrants()) {
        for (registrant const& r : registrants_) {
            if (r.host != by)
                o.notices.push_back({r.host, reservation_notice::reservation_released});
        }
    }
    type_ = reservation_type::none;
}

void reservations::remove_others(host_id const& by, std::optional<std::uint64_t> key, outcome& o) {
    std::erase_if(registrants_, [&](registrant const& r) {
        if (r.host == by || (key && r.key != *key)) return false;
        o.notices.push_back({r.host, reservation_notice::registration_preempted});
        o.preempted.push_back(r.host);
        return true;
    });
}

std::vector<std::byte> reservations::report() const {
    constexpr std::size_t part = 64;
    std::vector<std::byte> all(part * (1 + registrants_.size()));
    store(all, 0, generation_);
    all[4] = static_cast<std::byte>(type_);
    store(all, 5, static_cast<std::uint16_t>(registrants_.size()));
    all[9] = static_cast<std::byte>(is_kept_);
    for (std::size_t i = 0; i < registrants_.size(); ++i) {
        std::span<std::byte> const to = std::span{all}.subspan(part * (i + 1), part);
        constexpr std::uint16_t any_controller = 0xffff;
        store(to, 0, any_controller);
        to[2] = static_cast<std::byte>(holds(registrants_[i].host));
        store(to, 8, registrants_[i].key);
        std::ranges::copy(registrants_[i].host, to.begin() + 16);
    }
    return all;
}

std::string reservations::to_text() const {
    std::ostringstream text;
    text << heading << "\ngeneration " << generation_ << "\ntype " << static_cast<int>(type_)
         << "\nholder " << hexadecimal(holder_) << '\n';
    for (registrant const& r : registrants_)
        text << "registrant " << hexadecimal(r.host) << ' ' << std::hex << r.key << std::dec
             << '\n';
    text << "end\n";
    return text.str();
}

std::optional<reservations> reservations::from_text(std::string const& text) {
    std::istringstream from{text};
    std::string line;
    if (!std::getline(from, line) || line != heading) return std::nullopt;
    reservations made;
    made.is_kept_ = true;
    bool has_holder = false;
    while (std::getline(from, line)) {
        if (line == "end") {
            bool const is_held = made.is_reserved() && !made.is_all_registrants();
            bool const is_right = made.is_reserved() ? !made.registrants_.empty() : true;
            if (!is_right || (is_held && (!has_holder || made.find(made.holder_) == nullptr)))
                return std::nullopt;
            return made;
        }
        std::istringstream words{line};
        std::string name;
        std::string host;
        unsigned type = 0;
        words >> name;
        if (name == "generation") {
            words >> made.generation_;
        } else if (name == "type") {
            words >> type;
            made.type_ = static_cast<reservation_type>(type);
            if (type != 0 && !is_type(made.type_)) return std::nullopt;
        } else if (name == "holder") {
            words >> host;
            auto const read = host_of(host);
            if (!read) return std::nullopt;
            made.holder_ = *read;
            has_holder = true;
        } else if (name == "registrant") {
            registrant r;
            words >> host >> std::hex >> r.key;
            auto const read = host_of(host);
            if (!read || made.find(*read) != nullptr || made.registrants_.size() == registrants_max)
                return std::nullopt;
            r.host = *read;
            made.registrants_.push_back(r);
        } else {
            return std::nullopt;
        }
        if (words.fail()) return std::nullopt;
    }
    return std::nullopt;
}

}  // namespace rcverbs::nvme::detail
