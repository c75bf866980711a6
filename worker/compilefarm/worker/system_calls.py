"""Numbers of the system calls that children in a sandbox may not make.

From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h, which aarch64 uses.
"""

from __future__ import annotations

# By name: the number on x86_64, and on aarch64; None where there is no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # What is mounted where.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "sysfs": (139, None),
    "ustat": (136, None),
    # Other namespaces.
    "unshare": (272, 97),
    "setns": (308, 268),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # What others do with files that all of them can read (fanotify is above).
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # What is counted for the user that the farm runs as, too, whose own gateway waits by epoll: with all that one user
    # may have of it in use, nobody connects any more (/proc/sys/fs/epoll/max_user_watches, RLIMIT_MSGQUEUE).
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "mq_open": (240, 180),
    # What all processes of the machine have not written to disk yet, and who is served first there.
    "sync": (162, 81),
    "syncfs": (306, 267),
    "ioprio_set": (251, 30),
    # Processors are shared among sessions where the scheduler groups processes so (sched(7), autogroup): a child with a
    # hundred of them would get a hundred times what the farm gets. It has its own when the filter comes.
    "setsid": (112, 157),
    # Keys of the kernel.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Programs and memory that the kernel runs or serves for a process: where most of its weaknesses were found.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "lookup_dcookie": (212, 18),
    "remap_file_pages": (216, 234),
    "seccomp": (317, 277),
    # Memory that no process has mapped is counted as nobody's.
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    # Where the pages of a shared file shall lie is kept with the file, for each of its pages, and counts nowhere.
    "mbind": (237, 235),
    "set_mempolicy_home_node": (450, 450),
    # A byte of a page in a socket keeps all of it: seventeen pages in what counts there as one small message.
    "splice": (275, 76),
    "tee": (276, 77),
    "sendfile": (40, 71),
    # What files have beside their content lies in the kernel's memory for good where they do (tmpfs(5)), and counts
    # nowhere; nor do rules, of which a process may make any number, 65,536 to a descriptor.
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # The machine.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "lsm_set_self_attr": (460, 460),
}
# What is looked at more closely.
EXAMINED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "fadvise64": (221, 223),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "madvise": (28, 233),
    "personality": (135, 92),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
# The newest that was looked at: removexattrat, of Linux 6.13. The numbers of both are the same since 424.
NEWEST = 466
