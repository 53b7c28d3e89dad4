import { FRAME_FIELDS } from './model.ts';

/** One reading of one GPU. NaN: not readable. */
export interface Sample {
  util: number;
  mem_bytes: number;
  power_w: number;
  temp_c: number;
  lost: boolean;
}

/** The samples of a frame, in the order of the snapshot's GPUs. A frame cut short gives fewer samples. */
export function samples(frame: DataView | null): Sample[] {
  if (frame === null) return [];
  const step = 4 * FRAME_FIELDS;
  return Array.from({ length: Math.floor(frame.byteLength / step) }, (_, i) => {
    const at = (field: number): number => frame.getFloat32(i * step + 4 * field, true);
    return { util: at(0), mem_bytes: at(1), power_w: at(2), temp_c: at(3), lost: at(0) === -1 };
  });
}
