// Written by crates/render/tests/generated.rs; change crates/render/src/palette.rs.

export const SURFACES = {
  "light": {
    "accent": "#0a62a9",
    "disk": "#0072b2",
    "fault": "#d1260b",
    "grid": "#e3e6ea",
    "ground": "#ffffff",
    "line": "#9aa2ac",
    "muted": "#5b626b",
    "panel": "#f6f7f9",
    "text": "#1c2024"
  },
  "dark": {
    "accent": "#6cb6ff",
    "disk": "#56b4e9",
    "fault": "#ff5a3c",
    "grid": "#262c38",
    "ground": "#12151c",
    "line": "#5a6372",
    "muted": "#a0a8b2",
    "panel": "#171b24",
    "text": "#e6e8eb"
  }
};

export const CATEGORIES: Record<'light' | 'dark', Record<string, string>> = {
  "light": {
    "activation": "#b0b0b0",
    "attention": "#0072b2",
    "embedding": "#cc79a7",
    "expert": "#d55e00",
    "ffn": "#e69f00",
    "input": "#c9b49a",
    "kv_cache": "#7d7d7d",
    "norm": "#56b4e9",
    "other": "#99938a",
    "output": "#d9c416",
    "router": "#009e73",
    "shared_expert": "#f2a36b",
    "ssm": "#5d3a9b"
  },
  "dark": {
    "activation": "#7c7c7c",
    "attention": "#3b9dd8",
    "embedding": "#d992ba",
    "expert": "#e87a26",
    "ffn": "#e69f00",
    "input": "#9a866c",
    "kv_cache": "#a5a5a5",
    "norm": "#7cc7f0",
    "other": "#8a8680",
    "output": "#f0e442",
    "router": "#12b889",
    "shared_expert": "#f2a36b",
    "ssm": "#a98fe0"
  }
};

export const DASHES: Record<string, number[]> = {
  "activation": [],
  "attention": [],
  "embedding": [
    2,
    3
  ],
  "expert": [
    7,
    4
  ],
  "ffn": [
    9,
    3,
    2,
    3
  ],
  "input": [
    7,
    4
  ],
  "kv_cache": [
    12,
    3,
    2,
    3,
    2,
    3
  ],
  "norm": [
    12,
    3
  ],
  "other": [
    3,
    4
  ],
  "output": [
    4,
    6
  ],
  "router": [
    5,
    2,
    1,
    2
  ],
  "shared_expert": [
    3,
    4
  ],
  "ssm": [
    1,
    3
  ]
};

export const SERIES: string[] = [
  "attention",
  "expert",
  "router",
  "embedding",
  "ffn",
  "norm",
  "output",
  "kv_cache"
];

export const OPS: Record<string, string> = {
  "CPY": "output",
  "FLASH_ATTN_EXT": "router",
  "GET_ROWS": "embedding",
  "MUL_MAT": "attention",
  "MUL_MAT_ID": "expert",
  "NORM": "norm",
  "RMS_NORM": "norm",
  "ROPE": "ffn",
  "SET_ROWS": "output",
  "SOFT_MAX": "router"
};

export const WAYS: Record<string, string> = {
  "belady": "kv_cache",
  "expert_cache": "router",
  "lfu": "router",
  "lfu_aged": "ffn",
  "lru": "attention",
  "page_cache": "attention",
  "pin": "output",
  "pin_and_stream": "expert",
  "stream": "embedding"
};

export const TIME_PARTS: Record<string, string> = {
  "at_wall": "router",
  "barriers": "ffn",
  "below_wall": "attention",
  "fed_reads": "shared_expert",
  "host": "kv_cache",
  "imbalance": "output",
  "in_operations": "norm",
  "page_faults": "expert",
  "preempted": "embedding",
  "stolen": "input",
  "throttled": "ssm",
  "unexplained": "activation"
};

export const COUNTS = {
  "light": [
    "#f7f5ef",
    "#f9f2e2",
    "#faefd4",
    "#fcebc7",
    "#fde8b9",
    "#fde0a9",
    "#fdd899",
    "#fcd088",
    "#fcc878",
    "#fbbd6d",
    "#fab263",
    "#f8a658",
    "#f79b4d",
    "#f28f4c",
    "#ee824c",
    "#e9764b",
    "#e4694a",
    "#da5f4f",
    "#d15555",
    "#c74b5a",
    "#bd415f",
    "#af3d63",
    "#a23967",
    "#94346b",
    "#86306f",
    "#792d6b",
    "#6c2967",
    "#5e2663",
    "#51225f",
    "#461e56",
    "#3c194d",
    "#311543",
    "#26103a"
  ],
  "dark": [
    "#171b24",
    "#1b1c2c",
    "#1e1c35",
    "#221d3d",
    "#251d45",
    "#2e1e4e",
    "#381f57",
    "#411f5f",
    "#4a2068",
    "#57236a",
    "#64256c",
    "#70286d",
    "#7d2a6f",
    "#8a2e6d",
    "#98326b",
    "#a53668",
    "#b23a66",
    "#bd4260",
    "#c84b59",
    "#d35353",
    "#de5b4c",
    "#e46848",
    "#ea7445",
    "#ef8141",
    "#f58d3d",
    "#f79a45",
    "#f8a74d",
    "#fab454",
    "#fbc15c",
    "#fcce72",
    "#fcda88",
    "#fde79e",
    "#fdf3b4"
  ]
};

export const TIME = {
  "light": [
    "#440154",
    "#450b5d",
    "#461466",
    "#471e6f",
    "#472777",
    "#45307c",
    "#433981",
    "#424286",
    "#3f4988",
    "#3b518a",
    "#38588c",
    "#35608d",
    "#32678d",
    "#2f6d8e",
    "#2c748e",
    "#297b8e",
    "#26828d",
    "#24898d",
    "#21908c",
    "#21968a",
    "#229d88",
    "#22a386",
    "#24a983",
    "#2daf7e",
    "#36b678",
    "#40bc73",
    "#4cc26b",
    "#5bc763",
    "#6acc5a",
    "#79d152",
    "#8bd546",
    "#9dd83a",
    "#b0dc2f"
  ],
  "dark": [
    "#443780",
    "#424085",
    "#404788",
    "#3c4e89",
    "#39568b",
    "#365d8c",
    "#33638d",
    "#306a8d",
    "#2d718e",
    "#2a778e",
    "#287e8e",
    "#26848d",
    "#238b8d",
    "#21918c",
    "#21978a",
    "#229d88",
    "#22a386",
    "#24a983",
    "#2daf7e",
    "#36b678",
    "#3fbc73",
    "#4ac16d",
    "#58c664",
    "#66ca5c",
    "#75cf54",
    "#85d34a",
    "#96d73f",
    "#a8db33",
    "#bade28",
    "#cbe126",
    "#dbe326",
    "#ece525",
    "#fde725"
  ]
};

export const DIFFERENCE = {
  "light": [
    "#0b3c68",
    "#0c4678",
    "#0d5088",
    "#0e5998",
    "#0f63a8",
    "#1f71b3",
    "#2f80be",
    "#3f8ec9",
    "#4f9cd4",
    "#68aada",
    "#82b9e0",
    "#9bc7e6",
    "#b4d5ec",
    "#c4dded",
    "#d5e5ee",
    "#e5ecef",
    "#f5f4f0",
    "#f5edde",
    "#f6e7cc",
    "#f6e0ba",
    "#f6d9a8",
    "#f1cb8d",
    "#edbd72",
    "#e8ae57",
    "#e3a03c",
    "#d7932f",
    "#cb8621",
    "#be7914",
    "#b26c06",
    "#a06005",
    "#8f5503",
    "#7d4902",
    "#6b3d00"
  ],
  "dark": [
    "#9bd4ff",
    "#87c7f7",
    "#73baf0",
    "#5eace8",
    "#4a9fe0",
    "#3f8fce",
    "#357fbc",
    "#2a6fa9",
    "#1f5f97",
    "#1e5585",
    "#1e4a74",
    "#1d4062",
    "#1c3550",
    "#1c3046",
    "#1c2a3c",
    "#1b2532",
    "#1b1f28",
    "#282424",
    "#342a1f",
    "#412f1b",
    "#4d3416",
    "#5f3f14",
    "#724a13",
    "#845511",
    "#96600f",
    "#a86c10",
    "#ba7812",
    "#cb8413",
    "#dd9014",
    "#e6a12e",
    "#eeb147",
    "#f7c261",
    "#ffd27a"
  ]
};

export const MIN_SHARE = 0.08;
