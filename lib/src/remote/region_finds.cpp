#include "remote/region_finds.hpp"

#include <utility>

#include "remote/memory_core.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

region_finds::finding::finding(region_core& channel) : limit{channel} {}

region_finds::region_finds(region_core& channel)
    : channel_{channel},
      waits_{
          channel,
          [this] {
              std::erase_if(findings_, [this](auto const& f) { return !waits_.contains(f.first); });
          }},
      prepares_{channel} {}

// --- finding -------------------------------------------------------------------------------------

void region_finds::find(
    std::string name,
    std::chrono::milliseconds wait,
    protocol::waiter<error_code, remote_memory> who
) {
    if (!wire::is_region_name(name) || wait.count() < 0)
        return channel_.deliver(std::move(who), errc::invalid_option, {});
    if (auto const ec = channel_.usable()) return channel_.deliver(std::move(who), ec, {});
    std::uint64_t const number = waits_.add(std::move(who));
    if (number == 0) return;  // the channel has ended
    finding& f = findings_.try_emplace(number, channel_).first->second;
    f.name = std::move(name);
    f.waits = wait.count() > 0;
    if (f.waits)
        f.limit.start(wait, [this, number] { end_find(number, channel_errc::no_such_region); });
    ask(number, f);
}

void region_finds::ask(std::uint64_t find, finding& f) {
    f.is_asking = true;
    f.is_offered = false;
    channel_.ask_peer(
        region_operation::find,
        wire::encode_find(f.name),
        [this, find, question = early_.open()](error_code ec, reply const& r) {
            on_answer(find, question, ec, r);
        }
    );
}

void region_finds::on_offered(std::string const& name) {
    for (auto& [number, f] : findings_) {
        if (!f.waits || f.name != name) continue;
        f.is_offered = true;
        if (!f.is_asking) ask(number, f);
    }
}

void region_finds::on_answer(
    std::uint64_t find, std::uint64_t question, error_code ec, reply const& r
) {
    remote_memory found;
    bool const is_here = !ec && r.status() == static_cast<std::uint32_t>(region_status::found);
    if (is_here) {
        auto const message = wire::decode_found(r.bytes(), ec);
        if (!ec) found = take(message, question, ec);
    }
    early_.close(question);
    if (is_here && found.is_valid()) return end_find(find, {}, std::move(found));
    if (!ec && !is_here) ec = refusal_of(r);
    if (ec == channel_errc::malformed_message) return channel_.violated();
    if (ec == channel_errc::no_such_region) ec = {};
    auto const at = findings_.find(find);
    if (at == findings_.end()) return;
    finding& f = at->second;
    if (ec || !f.waits) return end_find(find, ec ? ec : channel_errc::no_such_region);
    f.is_asking = false;
    if (f.is_offered) ask(find, f);
}

error_code region_finds::refusal_of(reply const& r) {
    error_code ec;
    switch (static_cast<region_status>(r.status())) {
    case region_status::none: return channel_errc::no_such_region;
    case region_status::refused: {
        auto const refused = wire::decode_refused(r.bytes(), ec);
        if (ec) return ec;
        error_code const why{refused.why, boost::system::system_category()};
        refusal_.set(region_refusal{why, refused.limit});
        return why;
    }
    case region_status::other_version: return channel_errc::version_mismatch;
    default: return channel_errc::malformed_message;
    }
}

remote_memory region_finds::take(
    wire::region_found const& found, std::uint64_t question, error_code& ec
) {
    machines::piece_map const map{found.piece_bytes, found.range_bytes};
    if (!map.is_valid() || found.keys.size() > map.pieces()) ec = channel_errc::malformed_message;
    bool const is_gone =
        early_.contains(found.number, question) || channel_.allocations().is_freeing(found.number);
    if (ec || is_gone) return {};
    auto& known = held_[found.number];
    std::shared_ptr<memory_core> memory = known.lock();
    if (memory == nullptr) {
        memory = make_recycled<memory_core>(channel_.self(), found.number, found.rights, map);
        known = memory;
        held_count_ = held_.size();
    }
    memory->on_found();
    if (memory->map().pieces() == map.pieces()) memory->add_keys(0, found.keys);
    return memory_core::handle_of(std::move(memory));
}

void region_finds::end_find(std::uint64_t find, error_code ec, remote_memory found) {
    findings_.erase(find);
    waits_.complete(find, ec, std::move(found));
}

// --- memory that was found -----------------------------------------------------------------------

void region_finds::request_keys(wire::region_keys const& which, keys_handler then) {
    channel_.ask_peer(
        region_operation::keys,
        wire::encode(which),
        [this, most = which.count, t = std::move(then)](error_code ec, reply const& r) {
            if (ec) return t(ec, {});
            std::size_t const count = r.bytes().size() / wire::region_key_bytes;
            wire::piece_keys keys;
            if (r.status() == static_cast<std::uint32_t>(region_status::found)) {
                keys = wire::decode_piece_keys(r.bytes(), count, ec);
                if (count == 0 || count > most) ec = channel_errc::malformed_message;
            } else {
                ec = refusal_of(r);
                if (ec == channel_errc::no_such_region) ec = channel_errc::region_withdrawn;
                if (ec == channel_errc::version_mismatch) ec = channel_errc::malformed_message;
            }
            if (ec == channel_errc::malformed_message) channel_.violated();
            t(ec, keys);
        }
    );
}

void region_finds::drop(std::uint64_t number) noexcept {
    held_.erase(number);
    held_count_ = held_.size();
}

void region_finds::give_back(std::uint64_t number, std::uint32_t founds) {
    auto const known = held_.find(number);
    if (known != held_.end() && known->second.expired()) drop(number);
    notify_dropped(number, founds);
}

void region_finds::on_withdraw(request r) {
    error_code ec;
    std::uint64_t const number = wire::decode_number(r.bytes(), ec);
    if (ec || early_.size() >= early_max) return channel_.violated();
    auto const known = held_.find(number);
    auto const memory = known != held_.end() ? known->second.lock() : nullptr;
    drop(number);
    early_.add(number);
    if (memory != nullptr && !memory->withdraw()) draining_.insert(number);
    if (draining_.contains(number)) releasing_.emplace(number, std::move(r));
    else channel_.answer(std::move(r), region_status::found);
}

void region_finds::on_unused(std::uint64_t number) {
    draining_.erase(number);
    channel_.allocations().on_unused(number);
    for (auto found = releasing_.find(number); found != releasing_.end();
         found = releasing_.find(number)) {
        request r = std::move(found->second);
        releasing_.erase(found);
        channel_.answer(std::move(r), region_status::found);
    }
}

void region_finds::notify_dropped(std::uint64_t number, std::uint32_t founds) {
    if (!channel_.has_begun() || !channel_.channel().is_open()) return;
    if (++notices_ > notices_max)
        return channel_.fail_with(channel_errc::peer_not_received, close_reason::timed_out);
    auto const body = wire::encode(wire::region_dropped{number, founds});
    channel_.notify(region_operation::dropped, body, [this] { --notices_; });
}

void region_finds::end(error_code why) {
    findings_.clear();
    waits_.fail_all(why);
    prepares_.fail_all(why);
    releasing_.clear();
    for (auto const& [number, memory] : held_) {
        if (auto const alive = memory.lock()) alive->withdraw();
    }
    held_.clear();
    held_count_ = 0;
}

void region_finds::abandon() noexcept {
    findings_.clear();
    releasing_.clear();
    draining_.clear();
}

}  // namespace rcverbs::detail
