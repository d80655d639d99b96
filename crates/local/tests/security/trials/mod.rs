//! The trials by name.

mod barriers;
mod host_files;
mod neighbours;
mod resources;

use std::sync::Arc;

use libtest_mimic::Trial;

use crate::arena::{Arena, Side};

/// A trial that both kinds of attacker make.
type TwoSided = fn(&Arena, Side);

const TWO_SIDED: &[(&str, TwoSided)] = &[
    ("mounts_are_refused", |arena, side| barriers::plain(arena, side, "mounts")),
    ("mounts_by_descriptor_are_refused", |arena, side| barriers::plain(arena, side, "mounts_by_descriptor")),
    ("namespaces_are_closed", |arena, side| barriers::plain(arena, side, "namespaces")),
    ("kernel_calls_are_refused", |arena, side| barriers::plain(arena, side, "kernel_calls")),
    ("other_call_numbers_do_not_pass", |arena, side| barriers::plain(arena, side, "foreign_numbers")),
    ("kernel_files_are_closed", |arena, side| barriers::plain(arena, side, "kernel_files")),
    ("own_program_cannot_be_overwritten", |arena, side| barriers::plain(arena, side, "own_program")),
    ("init_does_not_obey_signals_or_tracers", |arena, side| barriers::plain(arena, side, "init")),
    ("init_keeps_its_bounds_and_rank", |arena, side| barriers::plain(arena, side, "init_scheduling")),
    ("socket_families_are_few", |arena, side| barriers::plain(arena, side, "families")),
    ("shared_devices_cannot_be_changed", |arena, side| barriers::plain(arena, side, "shared_devices")),
    ("mounts_carry_their_flags", |arena, side| barriers::plain(arena, side, "mount_flags")),
    ("a_command_has_three_descriptors", |arena, side| barriers::plain(arena, side, "descriptors")),
    ("init_files_are_closed", barriers::init_files),
    ("terminals_take_no_typing", barriers::terminal),
    ("devices_cannot_be_made_or_opened", barriers::devices),
    ("capabilities_are_exact", barriers::capabilities),
    ("the_environment_does_not_leak", barriers::environment),
    ("set_id_programs_raise_nobody", barriers::set_id_programs),
    ("no_path_leads_out_of_the_root", host_files::root_directory),
    ("read_only_exposures_do_not_change", host_files::read_only_exposure),
    ("secrets_and_home_are_not_seen", host_files::secrets),
    ("the_hosts_directories_are_its_own", host_files::host_paths),
    ("racing_names_do_not_mislead_the_files_api", host_files::racing_names),
    ("outside_processes_are_out_of_reach", neighbours::processes),
    ("a_killer_of_everybody_kills_its_own", neighbours::everybody),
    ("shared_memory_is_private", neighbours::shared_memory),
    ("addresses_are_unreachable_without_network", neighbours::addresses),
    ("unix_sockets_of_the_host_are_not_seen", neighbours::unix_sockets),
    ("abstract_sockets_are_private_on_the_hosts_network", neighbours::abstract_sockets),
    ("a_fork_bomb_ends_at_its_limit", resources::fork_bomb),
    ("a_fork_storm_ends_at_its_deadline", resources::fork_storm),
    ("a_starved_init_still_keeps_deadlines", resources::starved_init),
    ("a_memory_bomb_hurts_nobody_else", resources::memory_bomb),
    ("disk_and_inode_bombs_end_at_their_limit", resources::disk_bomb),
    ("a_descriptor_bomb_hurts_nobody_else", resources::descriptor_bomb),
    ("zombies_are_collected", resources::zombies),
];

/// Every trial.
pub(crate) fn all(arena: &Arc<Arena>) -> Vec<Trial> {
    let two_sided = TWO_SIDED.iter().flat_map(|(name, trial)| {
        Side::BOTH.map(|side| {
            let arena = Arc::clone(arena);
            Trial::test(format!("{name}_{}", side.word()), move || {
                trial(&arena, side);
                Ok(())
            })
        })
    });
    let bounded = Arc::clone(arena);
    let default_bound = Trial::test("processes_are_bounded_by_default", move || {
        resources::default_process_limit(&bounded);
        Ok(())
    });
    two_sided.chain([default_bound]).collect()
}
