#include "target_core.hpp"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>
#include "store_regions.hpp"

namespace rcverbs::nvme::detail {

namespace asio = boost::asio;
using rcverbs::detail::option_check;
using rcverbs::detail::throw_if_refused;

namespace {

constexpr std::uint16_t any_controller = 0xffff;
// The age of posted transfers is counted in periods of a timer: at least this many in transfer_timeout, and
// one in a second.
constexpr unsigned transfer_periods = 8;
// A queue of fewer entries can hold no command.
constexpr std::uint32_t queue_depth_min = 2;
// That of every host's admin queue.
constexpr std::uint32_t admin_depth = 32;
// Connections that may be ending beside connections_max queues.
constexpr std::size_t ending_max = 64;
// The least that a memory pool can have.
constexpr std::size_t staging_bytes_min = staging_memory::queue_bytes;

// What is left of the staging memory when each queue has its own part.
std::size_t common_staging_bytes(target_options const& o) {
    std::size_t const own = o.connections_max * staging_memory::queue_bytes;
    return (o.staging_bytes_max - own) / staging_bytes_min * staging_bytes_min;
}

// A host may use half of the common part, so two of the largest transfers must fit.
std::size_t common_bytes_min(target_options const& o) {
    return std::max(2 * std::size_t{o.transfer_bytes_max}, staging_bytes_min);
}

std::size_t connections_max(target_options const& o) {
    return std::min(
        o.connections_max, (o.staging_bytes_max - common_bytes_min(o)) / staging_memory::queue_bytes
    );
}

target_options checked(target_options o) {
    using std::chrono::milliseconds;
    option_check check{"target_options"};
    check.within("queue_depth_max", o.queue_depth_max, 16, 128)
        .within("io_queues_max", o.io_queues_max, 1, 64)
        .within("in_capsule_bytes", o.in_capsule_bytes, 0, 16384)
        .that(o.in_capsule_bytes % 16 == 0, "in_capsule_bytes", "is not a multiple of 16")
        .within("transfer_bytes_max", o.transfer_bytes_max, 8192, 1U << 20)
        .that(std::has_single_bit(o.transfer_bytes_max), "transfer_bytes_max", "is no power of two")
        .within(
            "staging_bytes_max",
            o.staging_bytes_max,
            common_bytes_min(o) + staging_memory::queue_bytes,
            std::size_t{64} << 30
        )
        .within("connections_max", o.connections_max, 1, 4096)
        .within("controller_id_min", o.controller_id_min, 1, o.controller_id_max)
        .within("controller_id_max", o.controller_id_max, 1, 0xffef)
        .that(
            std::ranges::all_of(o.io_pollers, &poller::is_valid), "io_pollers", "has an empty one"
        )
        .from("connect_timeout", o.connect_timeout, milliseconds{1})
        .from("transfer_timeout", o.transfer_timeout, milliseconds{transfer_periods})
        .from("command_report_age", o.command_report_age, milliseconds{1})
        .from("keep_alive_default", o.keep_alive_default, milliseconds{1});
    throw_if_refused(check.problem());
    o.connections_max = connections_max(o);
    return o;
}

std::uint64_t in_pages(std::uint64_t bytes) {
    constexpr std::uint64_t page_bytes = 4096;
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

// The pollers' connections and the others have a protection domain each, with its own registrations.
std::uint64_t registered_bytes_max(
    std::vector<subsystem_options> const& subsystems, target_options const& o
) {
    std::uint64_t stores = 0;
    for (subsystem_options const& s : subsystems) {
        for (namespace_options const& n : s.namespaces) {
            // A page more, since it may begin inside one.
            std::uint64_t const bytes = n.store == nullptr ? 0 : n.store->memory().size();
            if (bytes > 0) stores += in_pages(bytes) + in_pages(1);
        }
    }
    std::uint64_t const of_queue =
        staging_memory::queue_bytes +
        in_pages(std::max(
            queue::registered_bytes(o.queue_depth_max, o.in_capsule_bytes),
            queue::registered_bytes(std::max(admin_depth, o.queue_depth_max), 0)
        )) +
        in_pages(o.queue_depth_max * sizeof(std::uint64_t));  // results of atomics
    return (o.io_pollers.size() + 1) * common_staging_bytes(o) +
           std::max<std::uint64_t>(1, o.io_pollers.size()) * stores + o.connections_max * of_queue;
}

void check_secrets(subsystem_options const& o) {
    option_check check{"host_secrets"};
    for (host_secrets const& s : o.secrets) {
        check.that(s.host.starts_with("nqn."), "host", "is not an NQN")
            .that(
                !dhchap_key::decode(s.secret).value.empty(), "secret", "is not of the form DHHC-1"
            )
            .that(
                s.controller_secret.empty() ||
                    !dhchap_key::decode(s.controller_secret).value.empty(),
                "controller_secret",
                "is not of the form DHHC-1"
            );
    }
    throw_if_refused(problem_in("subsystem " + o.nqn, check.problem()));
}

std::vector<served_disk> disks_of(
    std::map<std::string, std::shared_ptr<subsystem>> const& subsystems
) {
    std::vector<served_disk> all;
    for (auto const& [nqn, each] : subsystems) {
        for (auto const& [id, d] : each->disks()) all.push_back({nqn, d});
    }
    return all;
}

std::map<std::string, std::shared_ptr<subsystem>> made(std::vector<subsystem_options> all) {
    std::map<std::string, std::shared_ptr<subsystem>> subsystems;
    for (subsystem_options& one : all) {
        option_check check{"subsystem_options"};
        check.that(one.nqn != discovery_nqn && !subsystems.contains(one.nqn), "nqn", "is in use");
        throw_if_refused(problem_in("subsystem " + one.nqn, check.problem()));
        check_secrets(one);
        auto next = std::make_shared<subsystem>(std::move(one));
        subsystems.emplace(next->nqn(), next);
    }
    check_uuids(disks_of(subsystems));
    return subsystems;
}

std::vector<std::byte> reject_data(connect_reject why) {
    std::vector<std::byte> data(4);
    store(std::span{data}, 2, static_cast<std::uint16_t>(why));
    return data;
}

// A quarter is left for hosts at other addresses, unless one host needs more for one controller.
// 0 for no limit.
std::chrono::milliseconds keep_alive_default(target_options const& o) noexcept {
    return o.keep_alive_default.value_or(std::chrono::milliseconds{0});
}

std::size_t connections_per_address_max(target_options const& o) {
    std::size_t const of_one = std::min<std::size_t>(o.connections_max, o.io_queues_max + 1);
    return std::max(o.connections_max / 4 * 3, of_one);
}

// Which queues there may be is decided in make_room().
acceptor_options terms(
    target_options const& o, std::function<void(endpoint const&, refusal)> on_refused
) {
    acceptor_options a;
    a.connections_max = o.connections_max + ending_max;
    a.connections_per_address_max = o.connections_max + ending_max;
    a.on_refused = std::move(on_refused);
    a.busy_private_data = reject_data(connect_reject::no_resources);
    return a;
}

connection_options queue_terms(std::uint32_t depth) {
    connection_options o;
    o.queue_pair.receive_queue_depth = depth;
    // A response is a send, often behind a write. Those of half of the commands keep the network busy;
    // others wait. There may be as many as slots: see queue.hpp.
    o.queue_pair.send_queue_depth = depth;
    o.queue_pair.waiting_operations_max = 4 * depth;
    o.queue_pair.send_segments_max = 1;
    o.queue_pair.receive_segments_max = 1;
    o.queue_pair.inline_bytes_max = completion_bytes;
    // Hosts get keys to nothing of ours.
    o.placement.domain = domain_sharing::shared;
    return o;
}

std::string_view name_of(store_operation o) noexcept {
    switch (o) {
    case store_operation::read: return "a read";
    case store_operation::write: return "a write";
    case store_operation::flush: return "a flush";
    case store_operation::write_zeroes: return "a write of zeros";
    case store_operation::discard: return "a discard";
    case store_operation::compare: return "a compare";
    }
    return "";
}

// Who, where, and for what.
std::string name_of(controller const& of, queue const& by) {
    return "host " + of.host().nqn + " at " + by.remote_endpoint().to_string() + ", subsystem " +
           of.of().nqn();
}

// Hosts choose their names, and what they ask for: of a log, each makes one line.
std::string printable(std::string text) {
    std::ranges::replace_if(
        text, [](char c) { return c < ' ' || c > '~'; }, '?'
    );
    return text;
}

// Bits 0 to 15: the offset of the wrong field; bit 16: in the data, not in the command. Source:
// Base Specification, 6.3.
completion invalid_parameter(std::uint64_t offset, bool is_in_data) {
    return {offset | std::uint64_t{is_in_data} << 16, status::connect_invalid_parameter, false};
}

}  // namespace

target_core::target_core(
    runs_on<asio::any_io_executor> where,
    endpoint const& local,
    std::vector<subsystem_options> subsystems,
    target_options options
)
    : where_{std::move(where)},
      options_{checked(std::move(options))},
      subsystems_{made(std::move(subsystems))},
      acceptor_{
          where_,
          local,
          terms(options_, [this](endpoint const& peer, refusal why) { on_refused(peer, why); })},
      transfer_timer_{executor()},
      local_{acceptor_.local_endpoint()} {}

// Calls f(*this) on the executor; at once if this is it.
template <class F>
void target_core::run(F f) {
    asio::dispatch(executor(), [self = shared_from_this(), f = std::move(f)] { f(*self); });
}

void target_core::start() {
    asio::post(executor(), [self = shared_from_this()] { self->get_request(); });
}

void target_core::close() noexcept {
    asio::post(executor(), [self = shared_from_this()] {
        if (std::exchange(self->is_closed_, true)) return;
        self->acceptor_.close();
        for (auto const& each : self->queues_) each->close();
    });
}

void target_core::get_request() {
    acceptor_.async_get_request([self = shared_from_this(
                                 )](error_code const& ec, connection_request request) {
        if (self->is_closed_ || ec == asio::error::operation_aborted) return;
        if (ec) {
            self->report("a connection request failed: " + ec.message());
            if (!self->acceptor_.is_open()) return;
        } else {
            self->on_request(std::move(request));
        }
        self->get_request();
    });
}

void target_core::on_request(connection_request request) {
    auto const data = request.private_data();
    if (data.size() < connect_private_data::size_bytes)
        return reject(std::move(request), connect_reject::length);
    connect_private_data const asked = connect_private_data::decode(data);
    std::uint32_t const depth = std::uint32_t{asked.host_send_queue} + 1;
    if (asked.format != 0) return reject(std::move(request), connect_reject::format);
    if (asked.queue > options_.io_queues_max)
        return reject(std::move(request), connect_reject::queue_id);
    std::uint32_t const depth_max = asked.queue == 0
                                        ? std::max(admin_depth, options_.queue_depth_max)
                                        : options_.queue_depth_max;
    if (depth < queue_depth_min || depth > depth_max)
        return reject(std::move(request), connect_reject::send_queue_size);
    if (asked.host_receive_queue == 0)
        return reject(std::move(request), connect_reject::receive_queue_size);
    endpoint const peer = request.remote_endpoint();
    if (!make_room(peer, request)) return;
    try {
        auto const poller = choose_poller(asked.queue);
        connection made{place_for(poller), std::move(request), queue_terms(depth)};
        auto staging = staging_for(made.domain());
        auto const next =
            std::make_shared<queue>(shared_from_this(), std::move(made), asked, std::move(staging));
        next->standing().poller = poller;
        queues_.push_back(next);
        ++counters_.queues;
        next->start();
        if (queues_.size() == 1) check_transfers();
    } catch (boost::system::system_error const& e) {
        // The host has gone, or the device or the system has no resources left.
        ++counters_.refused;
        std::string const what =
            "host at " + peer.to_string() + " could not be accepted: " + e.what();
        if (e.code() == boost::system::errc::not_enough_memory) on_no_memory(what);
        else report_refusal(what);
    }
}

// Admin queues share the state of controllers with the target.
std::optional<std::size_t> target_core::choose_poller(std::uint16_t queue_id) const {
    if (queue_id == 0 || options_.io_pollers.empty()) return std::nullopt;
    std::vector<std::size_t> queues(options_.io_pollers.size());
    for (auto const& each : queues_) {
        if (auto const poller = each->standing().poller) ++queues[*poller];
    }
    return std::ranges::min_element(queues) - queues.begin();
}

runs_on<asio::any_io_executor> target_core::place_for(std::optional<std::size_t> poller) const {
    return poller ? runs_on<asio::any_io_executor>{options_.io_pollers[*poller]} : where_;
}

// Requests that were refused before they could be looked at.
void target_core::on_refused(endpoint const& peer, refusal why) {
    ++counters_.refused;
    char const* reason = "";
    switch (why) {
    case refusal::backlog: reason = "too many requests at once"; break;
    case refusal::connections:
    case refusal::connections_per_address: reason = "too many queues are ending"; break;
    case refusal::violation: reason = "this address has broken the protocol"; break;
    }
    report_refusal("refused a connection from " + peer.to_string() + ": " + reason);
}

// Rejects the request if there is no place for its queue.
bool target_core::make_room(endpoint const& peer, connection_request& request) {
    std::vector<present_queue> present;
    for (auto const& each : queues_)
        present.push_back({each->remote_endpoint().address(), each->standing().is_proven()});
    admission const decided = admit(
        present, peer.address(), {options_.connections_max, connections_per_address_max(options_)}
    );
    switch (decided.is) {
    case admission::verdict::admitted: return true;
    case admission::verdict::in_exchange:
        evict(std::shared_ptr{queues_[decided.replaced]}, "a queue of " + peer.to_string());
        return true;
    case admission::verdict::too_many:
        reject(std::move(request), connect_reject::no_resources, "too many queues");
        return false;
    case admission::verdict::too_many_of_address: break;
    }
    reject(std::move(request), connect_reject::no_resources, "too many queues of this address");
    return false;
}

// The same for the numbers of controllers, of which an address has no share.
bool target_core::make_room_for_controller(endpoint const& host) {
    std::size_t const ids =
        std::size_t{options_.controller_id_max} - options_.controller_id_min + 1;
    std::vector<std::shared_ptr<queue>> admins;
    std::vector<present_queue> present;
    for (auto const& each : queues_) {
        auto const& of = each->standing().of;
        if (of == nullptr || each->id() != 0 || !associations_.contains(of->id())) continue;
        admins.push_back(each);
        present.push_back({each->remote_endpoint().address(), each->standing().is_proven()});
    }
    // The others have been forgotten: they are ending.
    admission const decided = admit(present, host.address(), {ids, ids + 1});
    if (decided.is == admission::verdict::in_exchange)
        evict(admins[decided.replaced], "a controller for " + host.to_string());
    return associations_.size() < ids;
}

// REQUIRES: `held` is no element of queues_, from which this erases the queue.
void target_core::evict(std::shared_ptr<queue> const& held, std::string const& for_what) {
    bool const is_discovery = held->standing().is_trusted;
    refuse(
        *held,
        is_discovery ? "discovery ends, for " + for_what
                     : "has not authenticated, and ends for " + for_what
    );
    auto const& of = held->standing().of;
    if (held->id() == 0 && of != nullptr) {
        // Its number is free at once.
        auto const found = associations_.find(of->id());
        if (found != associations_.end() && found->second.about == of) {
            for (auto const& each : found->second.queues) each->abort();
        }
    }
    held->abort();
    forget(held, {});
}

// Counts and reports a host that is disconnected, once.
void target_core::refuse(queue& from, std::string const& what) {
    if (std::exchange(from.standing().is_refused, true)) return;
    ++counters_.refused;
    auto const& of = from.standing().of;
    report_refusal(
        of == nullptr ? "host at " + from.remote_endpoint().to_string() + ": " + what
                      : name_of(*of, from) + ": " + what
    );
}

// I/O queues that a host at this address may still connect; others without a proof make room.
std::uint32_t target_core::io_queues_left(endpoint const& host) const {
    std::size_t proven = 0;
    std::size_t of_host = 0;
    for (auto const& each : queues_) {
        if (!each->standing().is_proven()) continue;
        ++proven;
        if (each->remote_endpoint().address() == host.address()) ++of_host;
    }
    auto const left = [](std::size_t max, std::size_t used) { return max - std::min(max, used); };
    return static_cast<std::uint32_t>(std::min(
        {left(options_.connections_max, proven),
         left(connections_per_address_max(options_), of_host),
         std::size_t{options_.io_queues_max}}
    ));
}

void target_core::reject(connection_request request, connect_reject why, std::string const& what) {
    ++counters_.refused;
    report_refusal(
        "refused a connection from " + request.remote_endpoint().to_string() + ": " +
        (what.empty() ? "connect reject status " + std::to_string(static_cast<int>(why)) : what)
    );
    error_code ignored;
    request.reject(reject_data(why), ignored);
}

std::shared_ptr<staging_memory> target_core::staging_for(protection_domain const& domain) {
    // Without queues, nothing of ours stays on a device.
    std::erase_if(staging_, [&](auto const& one) {
        if (!one.second.expired()) return false;
        for (auto const& [nqn, each] : subsystems()) {
            for (auto const& [id, d] : each->disks()) {
                regions_of(*d).forget(one.first);
            }
        }
        return true;
    });
    if (!domain.is_open()) return nullptr;
    for (auto const& [of, pool] : staging_) {
        if (auto alive = pool.lock(); alive != nullptr && of == domain) return alive;
    }
    // The last queue that uses it may end on another thread.
    auto const forget = [weak = weak_from_this()](staging_memory* unused) {
        delete unused;
        if (auto const self = weak.lock())
            asio::post(self->executor(), [self] { self->staging_for({}); });
    };
    std::shared_ptr<staging_memory> pool{
        new staging_memory{domain, common_staging_bytes(options_), accounts_mutex_}, forget};
    staging_.emplace_back(domain, pool);
    return pool;
}

// --- the Connect command -------------------------------------------------------------------------

connect_result target_core::connect(
    std::shared_ptr<queue> const& from, command const& c, connect_data const& data
) {
    constexpr std::uint64_t queue_id_at = 42;
    constexpr std::uint64_t queue_size_at = 44;
    constexpr std::uint64_t subsystem_at = 256;
    std::uint32_t const format = c.dword[0] & 0xffff;
    std::uint32_t const id = c.dword[0] >> 16;
    std::uint32_t const depth = (c.dword[1] & 0xffff) + 1;
    // A queue may have ended, or made room for another one, while the command was on its way.
    bool const is_there = std::ranges::count(queues_, from) > 0;
    if (is_closed_ || !is_there)
        return refuse_connect(*from, data, {0, status::connect_busy, true}, "closing");
    if (format != 0)
        return refuse_connect(
            *from, data, {0, status::connect_format, false}, "unknown record format"
        );
    if (id != from->id())
        return refuse_connect(*from, data, invalid_parameter(queue_id_at, false), "wrong queue");
    if (depth < queue_depth_min || depth > from->depth())
        return refuse_connect(
            *from, data, invalid_parameter(queue_size_at, false), "wrong queue size"
        );
    auto const to = find(data.subsystem);
    if (to == nullptr)
        return refuse_connect(
            *from, data, invalid_parameter(subsystem_at, true), "unknown subsystem"
        );
    using verdict = subsystem::admission::verdict;
    auto const host = to->admit(data.host);
    if (data.host.empty() || host.is == verdict::not_allowed)
        return refuse_connect(
            *from, data, {0, status::connect_invalid_host, false}, "host not allowed"
        );
    if (host.is == verdict::has_no_secret)
        return refuse_connect(
            *from, data, {0, status::connect_invalid_host, false}, "host has no secret"
        );
    connect_result done = id == 0 ? connect_admin(from, to, c, data) : connect_io(from, to, data);
    if (done.of == nullptr) return done;
    from->standing().of = done.of;
    from->standing().is_refused = false;
    done.depth = depth;
    done.account = account_of(data.host, from->remote_endpoint());
    done.secrets = host.secrets;
    constexpr std::uint64_t must_authenticate = 1U << 17;
    if (done.secrets) done.answer.result |= must_authenticate;
    else trust(*from);
    return done;
}

void target_core::on_trusted(std::shared_ptr<queue> const& from) {
    run([from](target_core& self) { self.trust(*from); });
}

void target_core::trust(queue& from) {
    from.standing().is_trusted = true;
    controller const& of = *from.standing().of;
    if (from.id() != 0) return;
    auto const found = associations_.find(of.id());
    if (found == associations_.end() || found->second.about.get() != &of) return;
    // Until then, connect_timeout counts.
    watch(of.id());
    if (of.of().is_discovery()) return;
    found->second.was_trusted = true;
    report(
        "host " + of.host().nqn + " at " + from.remote_endpoint().to_string() + " connected to " +
        of.of().nqn() + " as controller " + std::to_string(of.id())
    );
}

// The account lasts as long as the host has a queue.
std::shared_ptr<host_account> target_core::account_of(std::string const& host, endpoint const& at) {
    std::erase_if(accounts_, [](auto const& one) { return one.second.expired(); });
    auto const named = [this](std::string const& name) {
        auto& account = accounts_[name];
        auto held = account.lock();
        bool const is_new = held == nullptr;
        if (is_new) account = held = std::make_shared<host_account>();
        return std::pair{held, is_new};
    };
    std::string const address = at.address().to_string();
    auto const [account, is_new] = named(address + ' ' + host);
    // Other threads read it as long as the account lives.
    if (is_new) account->of_address = named(address).first;
    return account;
}

connect_result target_core::connect_admin(
    std::shared_ptr<queue> const& from,
    std::shared_ptr<subsystem> const& to,
    command const& c,
    connect_data const& data
) {
    constexpr std::uint64_t controller_at = 16;
    if (data.controller_id != any_controller)
        return refuse_connect(
            *from, data, invalid_parameter(controller_at, true), "wrong controller"
        );
    if (!make_room_for_controller(from->remote_endpoint()))
        return refuse_connect(*from, data, {0, status::connect_busy, true}, "too many controllers");
    // Numbers are used again as late as possible.
    do
        last_id_ = last_id_ < options_.controller_id_min || last_id_ >= options_.controller_id_max
                       ? options_.controller_id_min
                       : static_cast<std::uint16_t>(last_id_ + 1);
    while (associations_.contains(last_id_));
    controller_terms terms;
    terms.queue_depth_max = options_.queue_depth_max;
    terms.io_queues_max = options_.io_queues_max;
    terms.in_capsule_bytes = options_.in_capsule_bytes;
    terms.transfer_bytes_max = options_.transfer_bytes_max;
    auto const made =
        std::make_shared<controller>(last_id_, to, host_identity{data.host, data.host_id}, terms);
    std::chrono::milliseconds const asked{c.dword[2]};
    made->set_keep_alive(asked.count() > 0 ? asked : keep_alive_default(options_));
    made->io_queues_left = [this, host = from->remote_endpoint()] { return io_queues_left(host); };
    made->discover = [this, local = from->local_endpoint(), host = data.host] {
        return discover(local, host);
    };
    made->counters_of = [this, nqn = to->nqn(), host = data.host](std::uint32_t namespace_id) {
        return by_host_.find_or_add(nqn, namespace_id, host);
    };
    associations_.emplace(last_id_, association{made, {from}, asio::steady_timer{executor()}});
    if (!to->is_discovery()) {
        ++counters_.controllers, ++counters_.controllers_made;
    }
    return {{last_id_, status::success, false}, made};
}

connect_result target_core::connect_io(
    std::shared_ptr<queue> const& from,
    std::shared_ptr<subsystem> const& to,
    connect_data const& data
) {
    constexpr std::uint64_t controller_at = 16;
    constexpr std::uint64_t queue_id_at = 42;
    auto const found = associations_.find(data.controller_id);
    // A queue joins the controller of the same host and subsystem only.
    if (found == associations_.end() || found->second.about->host().nqn != data.host ||
        found->second.about->host().id != data.host_id || &found->second.about->of() != to.get())
        return refuse_connect(
            *from, data, invalid_parameter(controller_at, true), "wrong controller"
        );
    association& a = found->second;
    if (to->is_discovery() || !a.about->is_enabled())
        return refuse_connect(*from, data, {0, status::command_sequence, false}, "not enabled");
    auto const same = std::ranges::find(a.queues, from->id(), &queue::id);
    if (same != a.queues.end()) {
        if ((*same)->standing().is_trusted)
            return refuse_connect(
                *from, data, invalid_parameter(queue_id_at, false), "queue in use"
            );
        // A queue that has not proved itself does not keep others out.
        (*same)->close();
        a.queues.erase(same);
        a.about->on_queue(false);
    }
    a.queues.push_back(from);
    a.about->on_queue(true);
    return {{a.about->id(), status::success, false}, a.about};
}

connect_result target_core::refuse_connect(
    queue& from, connect_data const& data, completion const& why, std::string const& what
) {
    from.standing().is_refused = true;
    ++counters_.refused;
    std::string const part = from.id() == 0 ? "" : "queue " + std::to_string(from.id()) + " of ";
    report_refusal(
        "refused " + part + "host " + (data.host.empty() ? "without a name" : data.host) + " at " +
        from.remote_endpoint().to_string() + ", subsystem " + data.subsystem + ": " + what
    );
    return {why};
}

discovery_list target_core::discover(endpoint const& local, std::string const& host) const {
    // A host reaches all subsystems where it has reached this one. The scope of a link-local address is
    // the name of an interface of this machine.
    boost::asio::ip::address address = local.address();
    if (address.is_v6()) {
        auto v6 = address.to_v6();
        v6.scope_id(0);
        address = v6;
    }
    discovery_entry here{discovery_nqn, address.to_string(), local_.port(), address.is_v6(), true};
    discovery_list list;
    list.entries = {here};
    here.is_discovery = false;
    std::lock_guard const lock{mutex_};
    list.generation = generation_;
    for (auto const& [nqn, each] : subsystems_) {
        if (each->admit(host).is == subsystem::admission::verdict::not_allowed) continue;
        here.nqn = nqn;
        list.entries.push_back(here);
        std::uint16_t port_id = here.port_id;
        for (endpoint const& other : each->other_addresses()) {
            auto const at = other.address();
            list.entries.push_back({nqn, at.to_string(), other.port(), at.is_v6(), false, ++port_id}
            );
        }
    }
    return list;
}

// --- the end of queues and controllers -----------------------------------------------------------

void target_core::on_end(std::shared_ptr<queue> const& ended, failure const& why) {
    run([ended, why](target_core& self) { self.forget(ended, why); });
}

// The queue, and if it is an admin queue the controller, counts no more.
void target_core::forget(std::shared_ptr<queue> const& ended, failure const& why) {
    if (std::erase(queues_, ended) == 0) return;
    --counters_.queues;
    if (queues_.empty()) transfer_timer_.cancel();
    auto const about = ended->standing().of;
    if (about == nullptr) return;
    auto const found = associations_.find(about->id());
    if (found != associations_.end() && found->second.about == about) {
        if (ended->id() != 0) {
            if (std::erase(found->second.queues, ended) > 0) about->on_queue(false);
        } else {
            // Without its admin queue a controller is of no use.
            for (auto const& each : found->second.queues) each->close();
            bool const was_trusted = found->second.was_trusted;
            associations_.erase(found);
            if (!about->of().is_discovery()) report_end(*ended, was_trusted, why);
        }
    }
}

// The end of a controller.
void target_core::report_end(queue& admin, bool was_trusted, failure const& why) {
    controller const& about = *admin.standing().of;
    --counters_.controllers;
    if (was_trusted) {
        // A host that leaves is no failure, and needs no advice.
        bool const has_left = !why.code || why.code == errc::peer_disconnected;
        report(
            "controller " + std::to_string(about.id()) + " of host " + about.host().nqn + " ended" +
            (has_left ? std::string{} : ": " + why.message())
        );
    } else {
        refuse(admin, "left before it had authenticated");
    }
}

// Runs while there are queues.
void target_core::check_transfers() {
    using namespace std::chrono_literals;
    std::chrono::milliseconds const timeout = rcverbs::detail::bounded(options_.transfer_timeout);
    std::chrono::milliseconds const period =
        std::min<std::chrono::milliseconds>(timeout / transfer_periods, 1s);
    transfer_timer_.expires_after(period);
    transfer_timer_.async_wait(
        [weak = weak_from_this(),
         periods = static_cast<unsigned>((timeout + period - 1ms) / period)](error_code const& ec) {
            auto const self = weak.lock();
            if (ec || self == nullptr || self->queues_.empty()) return;
            for (auto const& each : self->queues_) each->check_transfers(periods);
            self->check_transfers();
        }
    );
}

void target_core::on_stalled_transfer(std::shared_ptr<queue> const& from) {
    ++counters_.transfers_stalled;
    run([from](target_core& self) {
        auto const& of = from->standing().of;
        self.report(
            (of == nullptr ? "host at " + from->remote_endpoint().to_string() : name_of(*of, *from)
            ) +
            ": did not take a transfer for " +
            std::to_string(self.options_.transfer_timeout.count()) + " ms; its queue ends"
        );
    });
}

void target_core::on_no_memory(std::string const& why) {
    run([why](target_core& self) {
        if (std::exchange(self.has_reported_memory_, true) || !self.options_.on_fault) return;
        self.options_.on_fault(why);
    });
}

void target_core::on_failed_authentication(std::shared_ptr<queue> const& from) {
    run([from](target_core& self) {
        from->standing().is_trusted = false;
        self.refuse(*from, "failed to authenticate");
    });
}

void target_core::on_late(std::shared_ptr<queue> const& from) {
    run([from](target_core& self) {
        queue_standing const& is = from->standing();
        self.refuse(
            *from,
            std::string{is.of == nullptr ? "sent no Connect command" : "did not authenticate"} +
                " within " + std::to_string(self.options_.connect_timeout.count()) + " ms"
        );
        from->close();
    });
}

void target_core::on_life(std::shared_ptr<controller> const& of) {
    run([of](target_core& self) {
        auto const found = self.associations_.find(of->id());
        if (found == self.associations_.end() || found->second.about != of) return;
        found->second.queues.front()->probe(false);
    });
}

void target_core::on_disabled(controller const& of) {
    auto const found = associations_.find(of.id());
    if (found == associations_.end()) return;
    // The host may make new ones at once.
    std::erase_if(found->second.queues, [&](std::shared_ptr<queue> const& each) {
        if (each->id() == 0) return false;
        each->close();
        found->second.about->on_queue(false);
        return true;
    });
}

void target_core::watch(std::uint16_t id) {
    auto const found = associations_.find(id);
    if (found == associations_.end()) return;
    association& a = found->second;
    a.timer.cancel();
    if (a.about->keep_alive().count() == 0) a.about->set_keep_alive(keep_alive_default(options_));
    if (a.about->keep_alive().count() == 0) return;
    a.about->forget_life();
    a.timer.expires_after(a.about->keep_alive());
    a.timer.async_wait([weak = weak_from_this(), id](error_code const& ec) {
        auto const self = weak.lock();
        if (!ec && self != nullptr) self->on_silence(id);
    });
}

void target_core::on_silence(std::uint16_t id) {
    auto const found = associations_.find(id);
    if (found == associations_.end()) return;
    association& a = found->second;
    // watch() has set the timer again since.
    if (a.timer.expiry() > std::chrono::steady_clock::now()) return;
    if (a.about->has_shown_life()) return watch(id);
    // Linux sends nothing while it removes namespaces. So a host has one more period, unless its queue
    // pair does not answer either: then the connection ends.
    if (a.about->give_grace()) {
        a.queues.front()->probe(true);
        return watch(id);
    }
    ++counters_.keep_alive_expired;
    report(
        name_of(*a.about, *a.queues.front()) + ": sent nothing for " +
        std::to_string(2 * a.about->keep_alive().count()) + " ms; controller " +
        std::to_string(id) + " ends"
    );
    for (auto const& each : a.queues) each->close();
}

// --- namespaces ----------------------------------------------------------------------------------

target_core::subsystem_map target_core::subsystems() const {
    std::lock_guard const lock{mutex_};
    return subsystems_;
}

std::shared_ptr<subsystem> target_core::find(std::string const& nqn) const {
    if (nqn == discovery_nqn) return discovery_;
    std::lock_guard const lock{mutex_};
    auto const found = subsystems_.find(nqn);
    return found == subsystems_.end() ? nullptr : found->second;
}

std::shared_ptr<subsystem> target_core::must_find(std::string const& nqn) const {
    auto found = nqn == discovery_nqn ? nullptr : find(nqn);
    throw_if_refused(found != nullptr ? "" : "subsystem_options::nqn is unknown");
    return found;
}

void target_core::serve(std::vector<subsystem_options> subsystems) {
    std::lock_guard const changing{changing_};
    // What can fail comes first.
    subsystem_map next = made(std::move(subsystems));
    std::vector<std::pair<std::shared_ptr<subsystem>, subsystem::changes>> changed;
    subsystem_map removed;
    // Destroyed without the lock: a store may wait for its threads.
    std::vector<std::shared_ptr<subsystem>> replaced;
    {
        std::lock_guard const lock{mutex_};
        for (auto& [nqn, now] : next) {
            auto const before = subsystems_.find(nqn);
            if (before == subsystems_.end()) continue;
            changed.emplace_back(before->second, before->second->exchange(*now));
            replaced.push_back(std::exchange(now, before->second));
        }
        for (auto const& one : subsystems_) {
            if (!next.contains(one.first)) removed.insert(one);
        }
        subsystems_ = std::move(next);
        ++generation_;
    }
    for (auto const& [of, what] : changed) {
        tell_hosts(of, what.namespaces);
        if (what.has_ana) tell_hosts_of_ana(of);
    }
    tell_hosts(discovery_, {0});
    asio::post(executor(), [self = shared_from_this(), removed = std::move(removed)] {
        self->end_controllers([&](controller const& c) {
            if (c.of().is_discovery()) return false;
            using verdict = subsystem::admission::verdict;
            return removed.contains(c.of().nqn()) ||
                   c.of().admit(c.host().nqn).is != verdict::allowed;
        });
    });
}

void target_core::end_controllers(std::function<bool(controller const&)> const& of) {
    for (auto const& [id, a] : associations_) {
        if (!of(*a.about)) continue;
        report(
            "host " + a.about->host().nqn + " may not use " + a.about->of().nqn() +
            " any more: controller " + std::to_string(id) + " ends"
        );
        for (auto const& each : a.queues) each->close();
    }
}

void target_core::add_namespace(std::string const& nqn, namespace_options what) {
    std::lock_guard const changing{changing_};
    auto const of = must_find(nqn);
    std::uint32_t const id = what.id;
    auto const made = of->make(std::move(what));
    std::vector<served_disk> all = disks_of(subsystems());
    all.push_back({nqn, made});
    check_uuids(all);
    of->add(made);
    tell_hosts(of, {id});
}

void target_core::remove_namespace(std::string const& nqn, std::uint32_t id) {
    auto const of = must_find(nqn);
    of->remove(id);
    tell_hosts(of, {id});
}

void target_core::namespace_changed(std::string const& nqn, std::uint32_t id) {
    auto const of = must_find(nqn);
    of->refresh(id);
    tell_hosts(of, {id});
}

void target_core::set_ana_state(std::string const& nqn, std::uint32_t group, ana_state now) {
    auto const of = must_find(nqn);
    if (of->set_ana_state(group, now)) tell_hosts_of_ana(of);
}

void target_core::tell_hosts_of_ana(std::shared_ptr<subsystem> const& of) {
    asio::post(executor(), [self = shared_from_this(), of] {
        for (auto const& [id, a] : self->associations_) {
            if (&a.about->of() != of.get()) continue;
            if (auto const told = a.about->on_ana_change()) a.queues.front()->complete(*told);
        }
    });
}

void target_core::tell_hosts(
    std::shared_ptr<subsystem> const& of, std::vector<std::uint32_t> namespaces
) {
    asio::post(executor(), [self = shared_from_this(), of, namespaces = std::move(namespaces)] {
        for (auto const& [id, a] : self->associations_) {
            if (&a.about->of() != of.get()) continue;
            for (std::uint32_t const one : namespaces) {
                auto const told = a.about->on_namespace_change(one);
                if (told) a.queues.front()->complete(*told);
            }
        }
    });
}

void target_core::on_reservation(
    subsystem const& of,
    std::uint32_t namespace_id,
    std::vector<reservations::outcome::told> const& notices
) {
    if (notices.empty()) return;
    asio::post(executor(), [self = shared_from_this(), of = &of, namespace_id, notices] {
        for (auto const& [id, a] : self->associations_) {
            if (&a.about->of() != of) continue;
            for (auto const& each : notices) {
                if (each.host != a.about->host().id) continue;
                auto const told = a.about->on_reservation_notice(namespace_id, each.what);
                if (told) a.queues.front()->complete(*told);
            }
        }
    });
}

void target_core::when_unused(
    std::shared_ptr<disk> of, std::vector<host_id> hosts, std::function<void()> done
) {
    asio::post(
        executor(),
        [self = shared_from_this(),
         of = std::move(of),
         hosts = std::move(hosts),
         done = std::move(done)] {
            // It is called when the last queue has let go of it.
            std::shared_ptr<void> const last{nullptr, [done](void*) { done(); }};
            for (auto const& [id, a] : self->associations_) {
                if (std::ranges::find(hosts, a.about->host().id) == hosts.end()) continue;
                for (auto const& each : a.queues) each->when_unused(of, [last] {});
            }
        }
    );
}

// --- observers -----------------------------------------------------------------------------------

void target_core::report(std::string const& message) {
    report(host_reports_, options_.on_event, message);
}

void target_core::report_refusal(std::string const& message) {
    report(refusal_reports_, options_.on_event, message);
}

void target_core::report(report_budget& budget, observer const& to, std::string const& message) {
    if (!to) return;
    auto const missed = budget.admit(report_budget::clock::now());
    if (!missed) return;
    if (*missed > 0) to(std::to_string(*missed) + " events like the next one were not reported");
    to(printable(message));
}

void target_core::on_old_commands(
    std::shared_ptr<queue> const& from, std::size_t count, command_state first
) {
    run([from, count, first](target_core& self) {
        auto const& of = from->standing().of;
        self.report(
            self.old_reports_,
            self.options_.on_fault,
            (of == nullptr ? "host at " + from->remote_endpoint().to_string() : name_of(*of, *from)
            ) + ": " +
                (count == 1 ? "a command is" : std::to_string(count) + " commands are") +
                " not answered after " + std::to_string(self.options_.command_report_age.count()) +
                " ms; state" + (count == 1 ? "" : " of the oldest") + ": " + to_string(first)
        );
    });
}

void target_core::on_store_failure(
    std::string const& nqn,
    std::shared_ptr<disk> const& of,
    store_operation operation,
    error_code const& why
) {
    ++counters_.store_failures;
    run([nqn, of, operation, why](target_core& self) {
        disk_state::failure_list& reported = *of->state->failures;
        std::pair const one{operation, why};
        if (reported.size() >= disk_state::failures_max || std::ranges::count(reported, one) > 0)
            return;
        reported.push_back(one);
        if (!self.options_.on_fault) return;
        std::string text = "namespace " + std::to_string(of->options.id) + " of " + nqn + ": " +
                           std::string{name_of(operation)} + " failed: " + why.message();
        if (operation == store_operation::flush)
            text += "; what hosts have written since the last flush may be lost";
        self.options_.on_fault(text);
    });
}

target_statistics target_core::statistics() const {
    counters const& c = counters_;
    return {
        c.controllers,
        c.queues,
        c.controllers_made,
        c.refused,
        c.keep_alive_expired,
        c.reads,
        c.read_bytes,
        c.writes,
        c.written_bytes,
        c.other_commands,
        c.failed_commands,
        c.store_failures,
        c.transfers_stalled,
        c.commands,
        c.old_commands.snapshot()};
}

}  // namespace rcverbs::nvme::detail

namespace rcverbs::nvme {

std::uint64_t registered_bytes_max(
    std::vector<subsystem_options> const& subsystems, target_options const& options
) {
    return detail::registered_bytes_max(subsystems, detail::checked(options));
}

target::target(
    runs_on<boost::asio::any_io_executor> where,
    endpoint const& local,
    std::vector<subsystem_options> subsystems,
    target_options options
)
    : core_{std::make_shared<detail::target_core>(
          std::move(where), local, std::move(subsystems), std::move(options)
      )} {
    core_->start();
}

target& target::operator=(target&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

target::~target() { close(); }

endpoint target::local_endpoint() const { return core_->local(); }
target_statistics target::statistics() const { return core_->statistics(); }
std::vector<host_statistics> target::statistics_by_host() const {
    return core_->statistics_by_host();
}

void target::serve(std::vector<subsystem_options> subsystems) {
    core_->serve(std::move(subsystems));
}
void target::add_namespace(std::string const& nqn, namespace_options what) {
    core_->add_namespace(nqn, std::move(what));
}
void target::remove_namespace(std::string const& nqn, std::uint32_t id) {
    core_->remove_namespace(nqn, id);
}
void target::namespace_changed(std::string const& nqn, std::uint32_t id) {
    core_->namespace_changed(nqn, id);
}
void target::set_ana_state(std::string const& nqn, std::uint32_t group, ana_state now) {
    core_->set_ana_state(nqn, group, now);
}
void target::close() noexcept {
    if (core_ != nullptr) core_->close();
}

}  // namespace rcverbs::nvme
